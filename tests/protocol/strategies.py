"""Hypothesis strategies for every type of the protocol, made from the types."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect as types

from loopd_protocol.bounds import MAX_INT

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INT, MAX_INT) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def instances(cls: type) -> st.SearchStrategy[Any]:
    """Valid instances of a struct type."""
    return _strategy(types.type_info(cls)).map(lambda built: msgspec.convert(built, cls))


def any_of(known: dict[str, type]) -> st.SearchStrategy[Any]:
    """An instance of one of many types."""
    return st.sampled_from(sorted(known)).flatmap(lambda tag: instances(known[tag]))


def _strategy(kind: types.Type) -> st.SearchStrategy[Any]:
    match kind:
        case types.StructType():
            config = kind.cls.__struct_config__
            tag = {config.tag_field: st.just(config.tag)} if config.tag_field else {}
            needed = {f.encode_name: _strategy(f.type) for f in kind.fields if f.required}
            optional = {f.encode_name: _strategy(f.type) for f in kind.fields if not f.required}
            return st.fixed_dictionaries(tag | needed, optional=optional)
        case types.UnionType():
            return st.one_of(*(_strategy(member) for member in kind.types))
        case types.StrType(pattern=str() as pattern):
            return st.from_regex(pattern).filter(
                lambda s: (kind.min_length or 0) <= len(s) <= (kind.max_length or 4_096)
            )
        case types.StrType():
            return st.text(min_size=kind.min_length or 0, max_size=min(kind.max_length or 40, 40))
        case types.IntType():
            low = kind.ge if kind.ge is not None else -MAX_INT
            return st.integers(low, kind.le if kind.le is not None else MAX_INT)
        case types.BoolType():
            return st.booleans()
        case types.NoneType():
            return st.none()
        case types.LiteralType():
            return st.sampled_from(sorted(kind.values))
        case types.EnumType():
            return st.sampled_from([member.value for member in kind.cls])
        case types.VarTupleType() | types.ListType():
            return st.lists(_strategy(kind.item_type), min_size=kind.min_length or 0, max_size=3)
        case types.TupleType():
            return st.tuples(*(_strategy(item) for item in kind.item_types)).map(list)
        case types.DictType():
            return st.dictionaries(_strategy(kind.key_type), _strategy(kind.value_type), max_size=3)
        case types.RawType():
            return json_values.map(lambda value: msgspec.Raw(msgspec.json.encode({"t": value})))
        case types.AnyType():
            return json_values
    raise TypeError(f"no strategy for {kind!r}")
