"""JSON in messages as typed columns: whole batches at a time, and single ones only where it fails.

The values of a batch become lines, which Arrow reads in one go. That is right only if each of them
is one JSON object on one line; whatever might not be is brought into that form first, or is
malformed. If a batch still does not fit, halves of it are tried, until the bad ones are alone.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from anabranch.core.errors import LocalError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import DataType

MAX_BYTES = 64 << 20  # that are read as one, if they are several values


def check_type(data_type: "DataType", name: str = "value") -> None:
    """Refuse types that no JSON can be decoded into here."""
    from pyspark.sql import types

    simple = (
        types.StringType,
        types.BooleanType,
        types.IntegralType,
        types.FloatType,
        types.DoubleType,
        types.DecimalType,
        types.DateType,
        types.TimestampType,
        types.TimestampNTZType,
    )
    if isinstance(data_type, types.StructType):
        for field in data_type.fields:
            if not field.nullable:
                raise LocalError(
                    f"valueSchema: {name}.{field.name} is NOT NULL, and JSON may lack any field: "
                    "leave that out"
                )
            check_type(field.dataType, f"{name}.{field.name}")
    elif isinstance(data_type, types.ArrayType):
        check_type(data_type.elementType, f"{name}[]")
    elif not isinstance(data_type, simple):
        raise LocalError(
            f"valueSchema: {name} is {data_type.simpleString()}, which is not decoded here: leave "
            "valueSchema out, and use from_json(string(value), ...)"
        )


class Decoder:
    """Decodes values into one type."""

    def __init__(self, target: "pyarrow.StructType") -> None:
        import pyarrow
        import pyarrow.json

        self._arrow = pyarrow
        self._target = target
        self._parse = pyarrow.json.ParseOptions(
            explicit_schema=pyarrow.schema([_as_read(pyarrow, field) for field in target]),
            unexpected_field_behavior="ignore",
        )

    def decode(self, values: "pyarrow.BinaryArray") -> tuple["pyarrow.StructArray", dict[int, str]]:
        """Return the structs, null where a value does not fit, and why each of those does not."""
        pa = self._arrow
        bad: dict[int, str] = {}
        lines = self._as_lines(values, bad)
        pieces = self._read(lines, 0, bad)
        decoded = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
        if bad:
            places = [None if place in bad else place for place in range(len(values))]
            decoded = decoded.take(pa.array(places, pa.int64()))
        return decoded, bad

    def _as_lines(self, values: "pyarrow.BinaryArray", bad: dict[int, str]) -> Any:
        """Return the values, each an object on one line; `{}` instead of what is none."""
        pa = self._arrow
        pc = pa.compute
        framed = pc.and_(pc.starts_with(values, b"{"), pc.ends_with(values, b"}"))
        plain = pc.and_not(framed, pc.match_substring_regex(values, b"[\n\r]"))
        if pc.all(plain).as_py() is not False:
            return values
        lines = values.to_pylist()
        for place in pc.indices_nonzero(pc.invert(plain)).to_pylist():
            try:
                lines[place] = msgspec.json.format(lines[place], indent=-1)
            except (msgspec.DecodeError, RecursionError) as error:
                lines[place], bad[place] = b"{}", f"it is not JSON ({error})"
            if not lines[place].startswith(b"{"):
                lines[place], bad[place] = b"{}", "it is no JSON object"
        return pa.array(lines, pa.binary())

    def _read(self, lines: Any, begin: int, bad: dict[int, str]) -> list["pyarrow.StructArray"]:
        """Decode lines; those that do not fit become empty, and are noted."""
        pa = self._arrow
        if len(lines) > 1 and lines.nbytes > MAX_BYTES:
            return self._halves(lines, begin, bad)
        try:
            return [self._read_all(lines)]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if len(lines) > 1:
                return self._halves(lines, begin, bad)
            bad[begin] = f"it does not fit the schema ({error})"
            return [pa.nulls(1, self._target)]

    def _halves(self, lines: Any, begin: int, bad: dict[int, str]) -> list["pyarrow.StructArray"]:
        middle = len(lines) // 2
        first = self._read(lines.slice(0, middle), begin, bad)
        return first + self._read(lines.slice(middle), begin + middle, bad)

    def _read_all(self, lines: Any) -> "pyarrow.StructArray":
        pa = self._arrow
        if not len(lines):
            return pa.nulls(0, self._target)
        joined = pa.compute.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), b"\n")
        text = joined[0].as_buffer()
        options = pa.json.ReadOptions(use_threads=False, block_size=text.size + 1)
        table = pa.json.read_json(pa.BufferReader(text), options, self._parse)
        if table.num_rows != len(lines):
            raise pa.ArrowInvalid("more than one object in one value")
        found = table.combine_chunks().to_struct_array().combine_chunks()
        if found.type != self._target:
            found = found.cast(self._target)
        return found


def _as_read(pa: Any, field: "pyarrow.Field") -> "pyarrow.Field":
    """Return a field as Arrow can read it from JSON: dates are text there, and cast later."""
    return field.with_type(_type_as_read(pa, field.type))


def _type_as_read(pa: Any, kind: Any) -> Any:
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([_as_read(pa, field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_read(pa, kind.value_field))
    return kind
