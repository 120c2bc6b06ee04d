"""What msgspec knows of the wire types: their limits, and values at, inside and beyond these.

All of it is read from the types, so a new message is tested the moment it joins `Control`.
"""

from collections.abc import Iterator
from typing import Any, get_args

import msgspec.inspect as mi
from hypothesis import strategies as st

from anabranch.core.messages import Bulk, Control
from anabranch.core.messages.data import Body, Items

CONTROL_TYPES: tuple[type, ...] = get_args(Control)
BULK_TYPES: tuple[type, ...] = get_args(Bulk)
ROOTS = {"Control": Control, "Body": Body, "Items": Items}  # all that is ever decoded

WIDEST = "\U0001f600"  # one character, four bytes


def walk(info: mi.Type, path: str) -> Iterator[tuple[str, mi.Type]]:
    """Visit a type and everything in it, each with a name such as Instruction.connect[]."""
    yield (info.cls.__name__ if isinstance(info, mi.StructType) else path), info
    match info:
        case mi.UnionType():
            for member in info.types:
                yield from walk(member, path)
        case mi.VarTupleType():
            yield from walk(info.item_type, path + "[]")
        case mi.StructType():
            for field in info.fields:
                yield from walk(field.type, f"{info.cls.__name__}.{field.name}")


def complaint(info: mi.Type) -> str | None:
    """Say what limit a type lacks; None if it has all it needs."""
    match info:
        case mi.BoolType() | mi.NoneType() | mi.UnionType():
            return None
        case mi.StructType():
            closed = info.array_like and info.forbid_unknown_fields
            return None if closed else "takes elements that it does not know"
        case mi.IntType():
            return None if None not in int_limits(info) else "has no lower or no upper limit"
        case mi.StrType() | mi.BytesType() | mi.VarTupleType():
            return None if info.max_length is not None else "has no greatest length"
        case _:
            return f"is a {type(info).__name__}, which this test does not know"


def int_limits(info: mi.IntType) -> tuple[int | None, int | None]:
    """Return the least and the greatest value that is allowed."""
    low = info.ge if info.gt is None else info.gt + 1
    high = info.le if info.lt is None else info.lt - 1
    return low, high


def lengths(info: mi.StrType | mi.BytesType | mi.VarTupleType) -> tuple[int, int]:
    """Return the least and the greatest length that is allowed."""
    low = info.min_length or 0
    return low, low if info.max_length is None else info.max_length


def values(info: mi.Type) -> st.SearchStrategy[Any]:
    """Draw anything that the type allows."""
    match info:
        case mi.BoolType():
            return st.booleans()
        case mi.IntType():
            return st.integers(*int_limits(info))
        case mi.StrType():
            return st.text("aé/~" + WIDEST, min_size=lengths(info)[0], max_size=lengths(info)[1])
        case mi.BytesType():
            return st.binary(min_size=lengths(info)[0], max_size=lengths(info)[1])
        case mi.VarTupleType():
            low, high = lengths(info)
            return st.lists(values(info.item_type), min_size=low, max_size=high).map(tuple)
        case mi.StructType():
            return st.builds(info.cls, **{f.name: values(f.type) for f in info.fields})
        case mi.UnionType():
            return st.one_of([values(each) for each in info.types])
        case mi.NoneType():
            return st.none()
        case _:
            raise TypeError(info)


def smallest(info: mi.Type) -> Any:
    """Make the least value that is allowed."""
    return _extreme(info, 0, "a")


def largest(info: mi.Type) -> Any:
    """Make the allowed value that takes the most bytes."""
    return _extreme(info, 1, WIDEST)


def _extreme(info: mi.Type, end: int, character: str) -> Any:
    match info:
        case mi.BoolType():
            return bool(end)
        case mi.IntType():
            return int_limits(info)[end] or 0
        case mi.StrType():
            return character * lengths(info)[end]
        case mi.BytesType():
            return b"b" * lengths(info)[end]
        case mi.VarTupleType():
            return (_extreme(info.item_type, end, character),) * lengths(info)[end]
        case mi.StructType():
            return info.cls(**{f.name: _extreme(f.type, end, character) for f in info.fields})
        case mi.UnionType():  # of something and nothing
            some = next(each for each in info.types if not isinstance(each, mi.NoneType))
            return _extreme(some, end, character) if end else None
        case _:
            raise TypeError(info)


def edges(info: mi.Type, path: str) -> Iterator[tuple[str, Any, bool]]:
    """Yield, for every limit, a name, the value at it or one step beyond, and whether it is in."""
    match info:
        case mi.StructType():
            least = {field.name: smallest(field.type) for field in info.fields}
            for field in info.fields:
                for name, value, allowed in edges(field.type, f"{path}.{field.name}"):
                    yield name, info.cls(**least | {field.name: value}), allowed
        case mi.UnionType():
            for each in info.types:
                yield from edges(each, path)
        case mi.NoneType():
            yield f"{path}=None", None, True
        case _ if complaint(info):
            return  # it has no limit that could be tried
        case mi.BoolType():
            yield from ((f"{path}={value!r}", value, type(value) is bool) for value in (True, 1))
        case mi.IntType():
            low, high = int_limits(info)
            for value in (low, low - 1, high, high + 1):
                yield f"{path}={value}", value, low <= value <= high
        case mi.StrType() | mi.BytesType() | mi.VarTupleType():
            units = {mi.StrType: WIDEST, mi.BytesType: b"b"}
            unit = units.get(type(info)) or (smallest(info.item_type),)
            low, high = lengths(info)
            for length in (low, low - 1, high, high + 1):
                if length >= 0:
                    yield f"len({path})={length}", unit * length, low <= length <= high
            if isinstance(info, mi.VarTupleType):
                for name, value, allowed in edges(info.item_type, path + "[]"):
                    yield name, (value,), allowed
