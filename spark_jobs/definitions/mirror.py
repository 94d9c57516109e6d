"""``kind: Mirror``: a process that copies topics from one cluster to another."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, ValidationInfo, field_validator

from spark_jobs.definitions.model import Duration, Pattern, StrictModel


class Mirror(StrictModel):
    """One mirror. A topic of the source that matches ``topics`` becomes ``prefix`` and its name in the target."""

    name: str = ""
    """From ``metadata.name``."""
    source_cluster_id: str = Field(alias="sourceClusterId", min_length=1)
    target_cluster_id: str = Field(alias="targetClusterId", min_length=1)
    topics: Pattern = ".+"
    """Regular expression for whole names of topics in the source."""
    prefix: str = Field(default="", pattern=r"^[A-Za-z0-9._-]*$", validate_default=True)
    """Prefix that MirrorMaker 2 adds to topic names: the alias of the source and a dot. Empty: names are not
    changed."""
    principals: tuple[str, ...] = ()
    """Principals of the mirror in the target, for example ``User:mirror``; empty: every writer of the target's
    topics."""
    client_ids: tuple[str, ...] = Field(default=(), alias="clientIds")
    """Client ids of the mirror's producers in the target; empty: any."""
    lag: Duration = timedelta(minutes=5)
    """How late a record may arrive before it counts as missing."""

    @field_validator("prefix")
    @classmethod
    def _check_sides_differ(cls, value: str, declared: ValidationInfo) -> str:
        if not value and declared.data.get("source_cluster_id") == declared.data.get("target_cluster_id"):
            raise ValueError("must not be empty where sourceClusterId and targetClusterId are the same")
        return value
