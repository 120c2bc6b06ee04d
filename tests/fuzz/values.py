"""Values of wire types, as the fuzzer makes them."""

from collections.abc import Sequence
from typing import Any

import msgspec.inspect as mi
from choices import Choices

from anabranch.core.ids import NodeId, StreamPart, chain_key
from wire_types import int_limits, lengths


def value(
    info: mi.Type, choices: Choices, nodes: Sequence[NodeId], parts: Sequence[StreamPart]
) -> Any:
    """Make a value of a wire type: mostly allowed, sometimes one step beyond a limit."""
    match info:
        case mi.BoolType():
            return bool(choices.below(2))
        case mi.IntType():
            low, high = int_limits(info)
            usual = [low, low + 1, low + 2, high, high - 1, low + choices.below(256)]
            return low - 1 if choices.one_in(32) else choices.pick(usual)
        case mi.StrType():
            return choices.pick(["", "ws://host:1", "x" * lengths(info)[1], "\U0001f600" * 300])
        case mi.BytesType(max_length=28):
            return chain_key(choices.pick(nodes), choices.below(3))
        case mi.BytesType():
            return bytes(19) if choices.one_in(32) else choices.pick(nodes)
        case mi.VarTupleType():
            high = lengths(info)[1]
            count = high + choices.below(2) if choices.one_in(32) else choices.below(6)
            return tuple(value(info.item_type, choices, nodes, parts) for _ in range(count))
        case mi.StructType(cls=cls) if cls is StreamPart and not choices.one_in(32):
            return choices.pick(parts)
        case mi.StructType():
            return info.cls(
                **{field.name: value(field.type, choices, nodes, parts) for field in info.fields}
            )
        case mi.UnionType():  # of something and nothing
            return None if choices.below(2) else value(info.types[0], choices, nodes, parts)
        case _:
            raise TypeError(info)
