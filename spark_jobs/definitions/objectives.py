"""``kind: SLO`` and ``kind: SLI``: objectives of OpenSLO v1 for the requests that the sidecars observed."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from spark_jobs.definitions.model import Duration, Pattern, StrictModel
from spark_jobs.kafka_versions import APIS, SIDECAR_APIS
from spark_jobs.schemas.slo import BURN_RATE_ALERTS, BURN_RATE_PERIOD_DAYS
from spark_jobs.schemas.traffic import LATENCY_BUCKETS_US

OPENSLO_API_VERSION = "openslo/v1"
"""``apiVersion`` of the kinds of OpenSLO."""

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)

GROUP_WAIT_APIS = ("JoinGroup", "SyncGroup")
"""Apis that wait for other clients. They are judged only if an objective names them."""

_NUMBERED_API = re.compile(r"ApiKey\(([0-9]{1,5})\)")

JudgedBy = Literal["api", "topic", "principal", "client_id"]
SliKind = Literal["latency", "errors", "answered"]


def _check_api(value: str) -> str:
    number = _NUMBERED_API.fullmatch(value)
    if value in APIS or value in SIDECAR_APIS or (number and int(number[1]) >= len(APIS)):
        return value
    lower = {name.lower(): name for name in (*APIS, *SIDECAR_APIS)}
    near = [APIS[int(number[1])]] if number else [lower[one] for one in get_close_matches(value.lower(), lower, n=1)]
    meant = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(
        f"must be the name of a Kafka api such as Produce, or ApiKey(<n>) for an api newer than {APIS[-1]}{meant}"
    )


Api = Annotated[str, AfterValidator(_check_api)]
"""Name of a Kafka api. It is checked, because an objective with a misspelled api would never match a request."""


class Selection(StrictModel):
    """Which requests are judged: those that match all fields. A field that is left out matches all requests."""

    apis: tuple[Api, ...] = ()
    clusters: tuple[Pattern, ...] = ()
    """Kafka cluster ids."""
    listeners: tuple[Pattern, ...] = ()
    topics: tuple[Pattern, ...] = ()
    principals: tuple[Pattern, ...] = ()
    client_ids: tuple[Pattern, ...] = Field(default=(), alias="clientIds")
    """A request without a client id does not match."""
    by: tuple[JudgedBy, ...] = ()
    """Columns to judge by: there is one verdict for each combination of their values."""

    @property
    def of_topics(self) -> bool:
        """Whether a request is judged once for each of its topics, instead of once as a whole."""
        return bool(self.topics) or "topic" in self.by


class _ResultSpec(StrictModel):
    result: Literal["success", "answered"]


class _RequestSource(StrictModel):
    type: Literal["brokerside"]
    spec: Selection = Selection()


class _ResultSource(StrictModel):
    type: Literal["brokerside"]
    spec: _ResultSpec


class _Total(StrictModel):
    metric_source: _RequestSource = Field(alias="metricSource")


class _Good(StrictModel):
    metric_source: _ResultSource = Field(alias="metricSource")


class _Ratio(StrictModel):
    counter: Literal[True] = True
    good: _Good
    total: _Total


class _SliSpec(StrictModel):
    description: str = ""
    threshold_metric: _Total | None = Field(default=None, alias="thresholdMetric")
    ratio_metric: _Ratio | None = Field(default=None, alias="ratioMetric")

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if (self.threshold_metric is None) == (self.ratio_metric is None):
            raise ValueError("must have either thresholdMetric or ratioMetric")
        if self.sli == "answered" and self.selection.of_topics:
            raise ValueError("result: answered cannot be judged by topic; use success, or omit topics and by: topic")
        return self

    @property
    def sli(self) -> SliKind:
        """The criterion of a good request."""
        if self.ratio_metric is None:
            return "latency"
        return "errors" if self.ratio_metric.good.metric_source.spec.result == "success" else "answered"

    @property
    def selection(self) -> Selection:
        """Which requests are judged."""
        of = self.threshold_metric or (self.ratio_metric and self.ratio_metric.total)
        assert of
        return of.metric_source.spec


class SLI(_SliSpec):
    """A separate indicator, for ``indicatorRef``."""

    name: str = ""
    """From ``metadata.name``."""


class _Indicator(StrictModel):
    metadata: Mapping[str, Any] = Field(default_factory=dict)
    spec: _SliSpec


class _TimeWindow(StrictModel):
    duration: Duration
    is_rolling: Literal[True] = Field(default=True, alias="isRolling")

    @model_validator(mode="before")
    @classmethod
    def _rolls(cls, value: object) -> object:
        if isinstance(value, dict) and (value.get("calendar") or value.get("isRolling") is False):
            raise ValueError("calendar windows are not supported; use a rolling window: duration: 30d, isRolling: true")
        return value

    @field_validator("duration")
    @classmethod
    def _is_whole_days(cls, value: timedelta) -> timedelta:
        if value % DAY or not DAY <= value <= 366 * DAY:
            raise ValueError("must be whole days, 1d to 366d")
        return value


def _minutes_as_duration(value: object) -> object:
    return f"{value}m" if isinstance(value, int) and not isinstance(value, bool) else value


class _ObjectiveSpec(StrictModel):
    display_name: str = Field(default="", alias="displayName")
    op: Literal["lte"] | None = None
    value: Decimal | None = Field(default=None, ge=Decimal(LATENCY_BUCKETS_US[0]) / 1000)
    """Threshold in ms."""
    target: Decimal | None = Field(default=None, ge=0, lt=1)
    target_percent: Decimal | None = Field(default=None, ge=0, lt=100, alias="targetPercent")
    slice_target: Decimal | None = Field(default=None, gt=0, le=1, alias="timeSliceTarget")
    slice_window: Annotated[Duration, BeforeValidator(_minutes_as_duration)] | None = Field(
        default=None, alias="timeSliceWindow"
    )

    @field_validator("slice_window")
    @classmethod
    def _divides_a_day(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and (value % MINUTE or DAY % value):
            raise ValueError("must be whole minutes that divide a day, such as 1m, 5m or 1h")
        return value

    @model_validator(mode="after")
    def _has_one_target(self) -> Self:
        if (self.target is None) == (self.target_percent is None):
            raise ValueError("must have either target or targetPercent")
        return self

    @property
    def ratio(self) -> Decimal:
        """The target as a ratio."""
        return (self.target_percent or Decimal()) / 100 if self.target is None else self.target


class SLO(StrictModel):
    """One SLO with its objectives. Features of OpenSLO that are not supported are errors."""

    name: str = ""
    """From ``metadata.name``."""
    description: str = Field(default="", max_length=1050)
    service: str = Field(min_length=1)
    indicator: _Indicator = Field(title="indicator or indicatorRef")
    time_window: tuple[_TimeWindow, ...] = Field(alias="timeWindow")
    method: Literal["Occurrences", "Timeslices"] = Field(alias="budgetingMethod")
    objectives: tuple[_ObjectiveSpec, ...]
    alert_policies: tuple[()] = Field(default=(), alias="alertPolicies")

    @field_validator("time_window")
    @classmethod
    def _is_one(cls, value: tuple[_TimeWindow, ...]) -> tuple[_TimeWindow, ...]:
        if len(value) != 1:
            raise ValueError("must be exactly one")
        return value

    @field_validator("alert_policies", mode="before")
    @classmethod
    def _has_none(cls, value: object) -> object:
        if value:
            raise ValueError("are not supported: alerts use fixed pairs of burn rate windows; omit this field")
        return ()

    @field_validator("objectives")
    @classmethod
    def _agree(cls, value: tuple[_ObjectiveSpec, ...], info: ValidationInfo) -> tuple[_ObjectiveSpec, ...]:
        indicator, method = info.data.get("indicator"), info.data.get("method")
        if not value:
            raise ValueError("must be at least one")
        if indicator is None or method is None:
            return value
        names = [each.display_name or str(place) for place, each in enumerate(value, 1)]
        wrong = [
            f"displayName {name}: each objective needs a unique one"
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        ]
        for name, each in zip(names, value, strict=True):
            if indicator.spec.sli == "latency" and (each.op is None or each.value is None):
                wrong.append(f"{name}: a thresholdMetric needs op: lte and value, in ms")
            if indicator.spec.sli != "latency" and (each.op is not None or each.value is not None):
                wrong.append(f"{name}: op and value are only allowed with a thresholdMetric")
            sliced = (each.slice_target is not None, each.slice_window is not None)
            if method == "Timeslices" and not all(sliced):
                wrong.append(f"{name}: Timeslices need timeSliceTarget and timeSliceWindow")
            if method == "Occurrences" and any(sliced):
                wrong.append(f"{name}: timeSliceTarget and timeSliceWindow are only allowed with Timeslices")
        if wrong:
            raise ValueError("\n".join(wrong))
        return value

    @property
    def judged_objectives(self) -> tuple[SloObjective, ...]:
        """The objectives, each with all values that are needed to judge it."""
        return tuple(
            SloObjective(
                slo=self.name,
                name=each.display_name or str(place),
                service=self.service,
                sli=self.indicator.spec.sli,
                selection=self.indicator.spec.selection,
                threshold_ms=each.value,
                target=each.ratio,
                period=self.time_window[0].duration,
                slice_target=each.slice_target,
                slice_window=each.slice_window or MINUTE,
            )
            for place, each in enumerate(self.objectives, 1)
        )


@dataclass(frozen=True)
class SloObjective:
    """One objective of one SLO, resolved for computation."""

    slo: str
    name: str
    service: str
    sli: SliKind
    selection: Selection
    threshold_ms: Decimal | None
    target: Decimal
    period: timedelta
    slice_target: Decimal | None
    """None: requests are counted instead of slices."""
    slice_window: timedelta
    """One minute if requests are counted."""

    @property
    def good_buckets(self) -> int:
        """Number of good latency buckets: those that end at the threshold or below it."""
        return 0 if self.threshold_ms is None else bisect_right(LATENCY_BUCKETS_US, self.threshold_ms * 1000)

    @property
    def counted_to_ms(self) -> float | None:
        """End of the last good latency bucket in ms."""
        return LATENCY_BUCKETS_US[self.good_buckets - 1] / 1000 if self.good_buckets else None

    @property
    def error_budget(self) -> Decimal:
        """Ratio of bad requests, or slices, that is allowed."""
        return 1 - self.target

    @property
    def alert_burn_rates(self) -> dict[str, float]:
        """By alert, the burn rate above which it fires, scaled to the period of the objective."""
        return {
            name: rate * (self.period / DAY) / BURN_RATE_PERIOD_DAYS for name, (_, _, rate) in BURN_RATE_ALERTS.items()
        }

    def describe(self) -> list[str]:
        """Return one line with the target and the criterion, as text."""
        unit = "requests" if self.slice_target is None else f"slices of {self.slice_window // MINUTE} min"
        good = {"latency": "in time", "errors": "answered without an error", "answered": "answered"}[self.sli]
        text = f"{self.slo}, {self.name}: {_percent(self.target)} of {unit} {good} in {self.period // DAY} days"
        if self.slice_target is not None:
            text += f"; a slice is good from {_percent(self.slice_target)} on"
        if self.threshold_ms is not None:
            text += f"; counted to {self.counted_to_ms} ms"
            if self.threshold_ms * 1000 != LATENCY_BUCKETS_US[self.good_buckets - 1]:
                near = " and ".join(
                    f"{end / 1000}" for end in LATENCY_BUCKETS_US[self.good_buckets - 1 : self.good_buckets + 1]
                )
                text += f", not {self.threshold_ms:f} ms: exact are {near}"
        return [text]


def _percent(ratio: Decimal) -> str:
    return f"{(ratio * 100).normalize():f} %"
