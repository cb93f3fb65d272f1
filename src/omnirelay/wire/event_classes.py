"""The protobuf library, imported when it is first needed, and the classes of the messages, built at run time."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from omnirelay.errors import FailedPrecondition
from omnirelay.wire.event_messages import FILE_NAME, PACKAGE, MessageField, messages


@cache
def library(module: str) -> Any:
    try:
        return importlib.import_module(f"google.protobuf.{module}")
    except ImportError:
        raise FailedPrecondition(
            "events in protobuf need the protobuf library: pip install 'omnirelay[protobuf]'"
        ) from None


def decode_error() -> type[Exception]:
    found: type[Exception] = library("message").DecodeError
    return found


@cache
def classes() -> dict[str, Any]:
    """The classes of the messages, in a pool of their own: nobody else's names can be in the way."""
    descriptors = library("descriptor_pb2")
    file = descriptors.FileDescriptorProto(name=FILE_NAME, package=PACKAGE, syntax="proto3")
    for name, fields in messages().items():
        message = file.message_type.add(name=name)
        for field in fields:
            _describe(descriptors.FieldDescriptorProto, message, field)
    pool = library("descriptor_pool").DescriptorPool()
    pool.Add(file)
    get = library("message_factory").GetMessageClass
    return {name: get(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in messages()}


def _describe(proto: Any, message: Any, field: MessageField) -> None:
    described = message.field.add(name=field.name, number=field.number)
    described.label = proto.LABEL_OPTIONAL if field.shape == "one" else proto.LABEL_REPEATED
    if field.shape == "map":
        entry = message.nested_type.add(name=f"{field.name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for number, name in enumerate(("key", "value"), 1):
            entry.field.add(name=name, number=number, label=proto.LABEL_OPTIONAL, type=proto.TYPE_STRING)
        described.type = proto.TYPE_MESSAGE
        described.type_name = f".{PACKAGE}.{message.name}.{entry.name}"
    elif field.kind in ("object", "list of objects"):
        described.type = proto.TYPE_MESSAGE
        described.type_name = f".{PACKAGE}.{field.type}"
    else:
        described.type = getattr(proto, f"TYPE_{field.type.upper()}")
        if field.shape == "one":
            # `optional`: a zero that was written can be told from nothing.
            described.proto3_optional = True
            described.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
