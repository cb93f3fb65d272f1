"""The lease procedures, bound to a shard: `ResourceLeaseComponent` puts them on any dispatcher."""
