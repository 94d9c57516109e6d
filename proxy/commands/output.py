"""How a command prints values for programs."""

from __future__ import annotations


def encode_value(value: object, output: str) -> str:
    """Return a msgspec Struct, or a list of them, as text: ``json`` in one line, or ``yaml`` as one document."""
    import msgspec
    import yaml

    if output == "yaml":
        document = yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True, width=120)
        return f"---\n{document}".rstrip("\n")
    return msgspec.json.encode(value).decode()
