"""Calls without a transport: dispatcher, metadata, codecs, middleware and the tables of statuses."""
