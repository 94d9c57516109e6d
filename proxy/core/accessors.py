"""How the fields of a message are read (KIP-388's ``ObservableStruct``), wherever their values come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Never

from proxy.core.exchange import RecordSet
from proxy.core.records import sums_of
from proxy.core.schema import Field
from proxy.core.wire import DecodeError
from proxy.errors import BrokersideError, MalformedBody, Side

NO_TAGS: Mapping[int, bytes] = MappingProxyType({})


class SchemaException(BrokersideError):
    """A message is not as the one who reads it takes it to be."""


class SchemaError(SchemaException, MalformedBody):
    """The bytes of a message are not what its version says."""


class MissingField(KeyError):
    """A struct has no such field in its version, or it is withheld; the text says which there are."""

    def __str__(self) -> str:
        return str(self.args[0])


class Frozen:
    """What cannot be changed once it is made."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"{type(self).__name__} is read-only")

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"{type(self).__name__} is read-only")


class Records(Frozen):
    """The record batches of one partition. What is read of them stands in their headers; no record is decompressed.

    ``data``: the bytes as they were sent, read-only; None where the body was too long to be kept.
    """

    __slots__ = ("_side", "_sums", "data")

    data: memoryview | None
    _sums: RecordSet | None
    _side: Side

    def __init__(self, data: memoryview | None, sums: RecordSet | None, side: Side) -> None:
        """``sums`` may be None where ``data`` is not."""
        put(self, "data", data)
        put(self, "_sums", sums)
        put(self, "_side", side)

    def size_in_bytes(self) -> int:
        """Bytes on the wire, compressed as sent, a cut last batch included."""
        return self._summed().size if self.data is None else len(self.data)

    @property
    def batches(self) -> int:
        """Whole batches."""
        return self._summed().batches

    @property
    def records(self) -> int:
        """Records in whole data batches: those of control batches do not count."""
        return self._summed().records

    @property
    def claimed(self) -> bool:
        """Whether ``records`` is a lower bound: a compressed message set of Kafka < 0.11 counts as one."""
        return self._summed().claimed

    @property
    def magic(self) -> int:
        """Format of the first batch, 0 to 2; −1 where there is none, as in all of the following."""
        return self._summed().magic

    @property
    def producer_id(self) -> int:
        """Producer id of the first batch."""
        return self._summed().producer_id

    @property
    def producer_epoch(self) -> int:
        """Producer epoch of the first batch."""
        return self._summed().producer_epoch

    @property
    def base_sequence(self) -> int:
        """Producer's sequence number of the first record."""
        return self._summed().base_sequence

    @property
    def base_offset(self) -> int:
        """Offset of the first record."""
        return self._summed().base_offset

    def __repr__(self) -> str:
        return f"<Records of {self.size_in_bytes()} bytes>"

    def _summed(self) -> RecordSet:
        """Walk the batches, once. Raises SchemaError where they are none."""
        if self._sums is None:
            assert self.data is not None
            try:
                put(self, "_sums", sums_of(self.data))
            except DecodeError as error:
                raise SchemaError(self._side, error.detail) from None
        assert self._sums is not None
        return self._sums


class Accessors(Frozen, ABC):
    """Read-only access to the fields of a struct. A name may be spelled as in the message definitions (``TopicData``)
    or as in KIP-388 (``topic_data``), and older names are known besides (``proxy.core.schema.OLD_NAMES``).

    Each method raises MissingField for a field that this version has not or that is withheld, SchemaException where it
    is of another type, and SchemaError where the bytes are not what their version says.
    """

    __slots__ = ()

    @abstractmethod
    def size_of(self) -> int:
        """Bytes: of a message the whole frame, size prefix included; of a part of one, what it takes on the wire."""

    @abstractmethod
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields there are, as in the message definitions."""

    @abstractmethod
    def _find(self, name: str) -> Field | None:
        """The field of that name, or None; also for one that is withheld."""

    @abstractmethod
    def _is_withheld(self, field: Field) -> bool:
        """Whether it may not be read."""

    @abstractmethod
    def _value(self, field: Field) -> Any:
        """Value of a field that ``_find`` found."""

    def unknown_tagged_fields(self) -> Mapping[int, bytes]:
        """Tagged fields (KIP-482) that no definition knows, by tag."""
        return NO_TAGS

    def has_field(self, name: str) -> bool:
        """Whether there is such a field, and it may be read."""
        field = self._find(name)
        return field is not None and not self._is_withheld(field)

    def get(self, name: str) -> Any:
        """Value of a field of any type: what the method for its type returns."""
        return self._value(self._field(name))

    def get_or_else(self, name: str, alternative: Any) -> Any:
        """Value of a field, or ``alternative`` where there is none."""
        return self.get(name) if self.has_field(name) else alternative

    def get_byte(self, name: str) -> int:
        """Value of an int8."""
        value: int = self._typed(name, "int8")
        return value

    def get_short(self, name: str) -> int:
        """Value of an int16."""
        value: int = self._typed(name, "int16")
        return value

    def get_int(self, name: str) -> int:
        """Value of an int32."""
        value: int = self._typed(name, "int32")
        return value

    def get_unsigned_int(self, name: str) -> int:
        """Value of an unsigned integer; the protocol has them of 16 bits (ports)."""
        value: int = self._typed(name, "uint16")
        return value

    def get_long(self, name: str) -> int:
        """Value of an int64."""
        value: int = self._typed(name, "int64")
        return value

    def get_float64(self, name: str) -> float:
        """Value of a float64."""
        value: float = self._typed(name, "float64")
        return value

    def get_string(self, name: str) -> str | None:
        """Value of a string; what is no UTF-8 in it is replaced."""
        value: str | None = self._typed(name, "string")
        return value

    def get_boolean(self, name: str) -> bool:
        """Value of a bool."""
        value: bool = self._typed(name, "bool")
        return value

    def get_uuid(self, name: str) -> str:
        """Value of a UUID as Kafka prints it: URL-safe base64, 22 characters."""
        value: str = self._typed(name, "uuid")
        return value

    def get_bytes(self, name: str) -> bytes | None:
        """Value of a byte field."""
        value: bytes | None = self._typed(name, "bytes")
        return value

    def get_records(self, name: str) -> Records:
        """The record batches of a partition; null is none of them."""
        value: Records = self._typed(name, "records")
        return value

    def get_struct(self, name: str) -> Accessors | None:
        """Value of a struct; None too for a tagged one that was not sent."""
        value: Accessors | None = self._typed(name, "struct")
        return value

    def get_array(self, name: str) -> tuple[Any, ...] | None:
        """Elements of an array of any type."""
        field = self._field(name)
        if not field.array:
            raise _wrong(name, field, "an array")
        value: tuple[Any, ...] | None = self._value(field)
        return value

    def get_observable_struct_array(self, name: str) -> tuple[Accessors, ...]:
        """Elements of an array of structs; none where it is null, which ``get`` distinguishes."""
        value: tuple[Accessors, ...] | None = self._typed(name, "struct", array=True)
        return () if value is None else value

    def _field(self, name: str) -> Field:
        field = self._find(name)
        if field is None:
            raise MissingField(f"no field {name!r} here; there are: {', '.join(self.field_names()) or 'none'}")
        if self._is_withheld(field):
            raise MissingField(f"the field {name!r} is withheld: it may hold a secret")
        return field

    def _typed(self, name: str, kind: str, *, array: bool = False) -> Any:
        field = self._field(name)
        if field.type != kind or field.array is not array:
            raise _wrong(name, field, f"array of {kind}" if array else kind)
        return self._value(field)


def put(frozen: Frozen, name: str, value: object) -> None:
    """Set an attribute of what is being made, or a cached one."""
    object.__setattr__(frozen, name, value)


def printed_id(raw: bytes) -> str:
    """Return the 16 bytes of a UUID as Kafka prints them: URL-safe base64 without padding, 22 characters."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _wrong(name: str, field: Field, wanted: str) -> SchemaException:
    return SchemaException(f"the field {name!r} is of type {field.described()}, not {wanted}")
