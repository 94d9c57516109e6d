"""``kind: Mirror``: what copies topics from one cluster to another."""

from __future__ import annotations

import re
from datetime import timedelta

from pydantic import Field, field_validator

from spark_jobs.definitions.model import Duration, Strict


class Mirror(Strict):
    """One mirror. A topic of the source that matches ``topics`` becomes ``prefix`` and its name in the target."""

    name: str = ""
    """From ``metadata.name``."""
    source_cluster_id: str = Field(alias="sourceClusterId", min_length=1)
    target_cluster_id: str = Field(alias="targetClusterId", min_length=1)
    topics: str = ".+"
    """Regular expression that names of the source's topics match as a whole."""
    prefix: str = ""
    """What MirrorMaker 2 puts before the names: the source's alias and a dot. Empty: names stay."""
    principals: tuple[str, ...] = ()
    """Who the mirror is in the target, as ``User:mirror``; empty: whoever writes the target's topics."""
    client_ids: tuple[str, ...] = Field(default=(), alias="clientIds")
    """The client ids of the mirror's producers in the target; empty: any."""
    lag: Duration = timedelta(minutes=5)
    """How late a record may arrive before it is missing."""

    @field_validator("topics")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"must be a regular expression: {error}") from None
        return value
