"""``kind: SLO`` and ``kind: SLI``: objectives as OpenSLO v1 writes them, over what the sidecars saw."""

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

from spark_jobs.definitions.model import Duration, Pattern, Strict
from spark_jobs.kafka_versions import APIS
from spark_jobs.schemas.slo import ALERTS, ALERTS_DAYS
from spark_jobs.schemas.traffic import BUCKETS

OPENSLO = "openslo/v1"
"""``apiVersion`` of OpenSLO's kinds."""

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)

WAITING = ("JoinGroup", "SyncGroup")
"""Apis that wait for other clients: judged only where an objective names them."""

_NUMBERED = re.compile(r"ApiKey\(([0-9]{1,5})\)")

By = Literal["api", "topic", "principal", "client_id"]
Sli = Literal["latency", "errors", "answered"]


def _api(value: str) -> str:
    number = _NUMBERED.fullmatch(value)
    if value in APIS or (number and int(number[1]) >= len(APIS)):
        return value
    lower = {name.lower(): name for name in APIS}
    near = [APIS[int(number[1])]] if number else [lower[one] for one in get_close_matches(value.lower(), lower, n=1)]
    meant = f"; is {near[0]} meant?" if near else ""
    raise ValueError(f"must be Kafka's name of an api, as Produce, or ApiKey(<n>) of one newer than {APIS[-1]}{meant}")


Api = Annotated[str, AfterValidator(_api)]
"""Kafka's name of a kind of requests. With one that no request has, an objective would watch nothing, in silence."""


class Selection(Strict):
    """Which requests are judged: those that all of these agree with; a field that is left out agrees with all."""

    apis: tuple[Api, ...] = ()
    clusters: tuple[Pattern, ...] = ()
    """The clusters' own ids."""
    listeners: tuple[Pattern, ...] = ()
    topics: tuple[Pattern, ...] = ()
    principals: tuple[Pattern, ...] = ()
    client_ids: tuple[Pattern, ...] = Field(default=(), alias="clientIds")
    """A request without a client id does not agree."""
    by: tuple[By, ...] = ()
    """One verdict for each combination of these."""

    @property
    def of_topics(self) -> bool:
        """Whether topics are judged, each request once for each topic it touched, rather than whole requests."""
        return bool(self.topics) or "topic" in self.by


class _Result(Strict):
    result: Literal["success", "answered"]


class _Requests(Strict):
    type: Literal["brokerside"]
    spec: Selection = Selection()


class _Results(Strict):
    type: Literal["brokerside"]
    spec: _Result


class _Total(Strict):
    metric_source: _Requests = Field(alias="metricSource")


class _Good(Strict):
    metric_source: _Results = Field(alias="metricSource")


class _Ratio(Strict):
    counter: Literal[True] = True
    good: _Good
    total: _Total


class _SliSpec(Strict):
    description: str = ""
    threshold_metric: _Total | None = Field(default=None, alias="thresholdMetric")
    ratio_metric: _Ratio | None = Field(default=None, alias="ratioMetric")

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if (self.threshold_metric is None) == (self.ratio_metric is None):
            raise ValueError("must have either thresholdMetric or ratioMetric")
        if self.sli == "answered" and self.selection.of_topics:
            raise ValueError("result: answered cannot be told of topics; use success, or leave out topics and by topic")
        return self

    @property
    def sli(self) -> Sli:
        """What makes a request a good one."""
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
    """An indicator of its own, for ``indicatorRef``."""

    name: str = ""
    """From ``metadata.name``."""


class _Indicator(Strict):
    metadata: Mapping[str, Any] = Field(default_factory=dict)
    spec: _SliSpec


class _TimeWindow(Strict):
    duration: Duration
    is_rolling: Literal[True] = Field(default=True, alias="isRolling")

    @model_validator(mode="before")
    @classmethod
    def _rolls(cls, value: object) -> object:
        if isinstance(value, dict) and (value.get("calendar") or value.get("isRolling") is False):
            raise ValueError(
                "periods of the calendar are not judged; use a rolling one: duration: 30d, isRolling: true"
            )
        return value

    @field_validator("duration")
    @classmethod
    def _is_whole_days(cls, value: timedelta) -> timedelta:
        if value % DAY or not DAY <= value <= 366 * DAY:
            raise ValueError("must be whole days, 1d to 366d")
        return value


def _slice(value: object) -> object:
    return f"{value}m" if isinstance(value, int) and not isinstance(value, bool) else value


class _Objective(Strict):
    display_name: str = Field(default="", alias="displayName")
    op: Literal["lte"] | None = None
    value: Decimal | None = Field(default=None, ge=Decimal(BUCKETS[0]) / 1000)
    """ms."""
    target: Decimal | None = Field(default=None, ge=0, lt=1)
    target_percent: Decimal | None = Field(default=None, ge=0, lt=100, alias="targetPercent")
    slice_target: Decimal | None = Field(default=None, gt=0, le=1, alias="timeSliceTarget")
    slice_window: Annotated[Duration, BeforeValidator(_slice)] | None = Field(default=None, alias="timeSliceWindow")

    @field_validator("slice_window")
    @classmethod
    def _divides_a_day(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and (value % MINUTE or DAY % value):
            raise ValueError("must be whole minutes that divide a day, as 1m, 5m or 1h")
        return value

    @model_validator(mode="after")
    def _has_one_target(self) -> Self:
        if (self.target is None) == (self.target_percent is None):
            raise ValueError("must have either target or targetPercent")
        return self

    @property
    def ratio(self) -> Decimal:
        """The target as a share."""
        return (self.target_percent or Decimal()) / 100 if self.target is None else self.target


class SLO(Strict):
    """One SLO with its objectives. What OpenSLO allows and this cannot do is refused."""

    name: str = ""
    """From ``metadata.name``."""
    description: str = Field(default="", max_length=1050)
    service: str = Field(min_length=1)
    indicator: _Indicator = Field(title="indicator or indicatorRef")
    time_window: tuple[_TimeWindow, ...] = Field(alias="timeWindow")
    method: Literal["Occurrences", "Timeslices"] = Field(alias="budgetingMethod")
    objectives: tuple[_Objective, ...]
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
            raise ValueError("are not read: what burns too fast is told by fixed pairs of windows; leave them out")
        return ()

    @field_validator("objectives")
    @classmethod
    def _agree(cls, value: tuple[_Objective, ...], info: ValidationInfo) -> tuple[_Objective, ...]:
        indicator, method = info.data.get("indicator"), info.data.get("method")
        if not value:
            raise ValueError("must be at least one")
        if indicator is None or method is None:
            return value
        names = [each.display_name or str(place) for place, each in enumerate(value, 1)]
        wrong = [
            f"displayName {name}: each objective needs one of its own"
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        ]
        for name, each in zip(names, value, strict=True):
            if indicator.spec.sli == "latency" and (each.op is None or each.value is None):
                wrong.append(f"{name}: a thresholdMetric needs op: lte and value, in ms")
            if indicator.spec.sli != "latency" and (each.op is not None or each.value is not None):
                wrong.append(f"{name}: op and value are for a thresholdMetric alone")
            sliced = (each.slice_target is not None, each.slice_window is not None)
            if method == "Timeslices" and not all(sliced):
                wrong.append(f"{name}: Timeslices need timeSliceTarget and timeSliceWindow")
            if method == "Occurrences" and any(sliced):
                wrong.append(f"{name}: timeSliceTarget and timeSliceWindow are for Timeslices alone")
        if wrong:
            raise ValueError("\n".join(wrong))
        return value

    @property
    def judged(self) -> tuple[Objective, ...]:
        """The objectives, each with all that is needed to judge it."""
        return tuple(
            Objective(
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
class Objective:
    """One objective of one SLO."""

    slo: str
    name: str
    service: str
    sli: Sli
    selection: Selection
    threshold_ms: Decimal | None
    target: Decimal
    period: timedelta
    slice_target: Decimal | None
    """None: requests are counted, not slices."""
    slice_window: timedelta
    """A minute where requests are counted."""

    @property
    def buckets(self) -> int:
        """How many of the latency buckets are good: those that end at the threshold or before it."""
        return 0 if self.threshold_ms is None else bisect_right(BUCKETS, self.threshold_ms * 1000)

    @property
    def counted_to_ms(self) -> float | None:
        """Where the last of them ends."""
        return BUCKETS[self.buckets - 1] / 1000 if self.buckets else None

    @property
    def budget(self) -> Decimal:
        """Share of bad requests, or slices, that is allowed."""
        return 1 - self.target

    @property
    def alerts(self) -> dict[str, float]:
        """By alert, the burn rate above which it goes off: that which takes the same share of the budget as in 30 d."""
        return {name: rate * (self.period / DAY) / ALERTS_DAYS for name, (_, _, rate) in ALERTS.items()}

    def described(self) -> list[str]:
        """Return what is aimed at and what is counted, for a person: one line."""
        unit = "requests" if self.slice_target is None else f"slices of {self.slice_window // MINUTE} min"
        good = {"latency": "in time", "errors": "answered without an error", "answered": "answered"}[self.sli]
        text = f"{self.slo}, {self.name}: {_percent(self.target)} of {unit} {good} in {self.period // DAY} days"
        if self.slice_target is not None:
            text += f"; a slice is good from {_percent(self.slice_target)} on"
        if self.threshold_ms is not None:
            text += f"; counted to {self.counted_to_ms} ms"
            if self.threshold_ms * 1000 != BUCKETS[self.buckets - 1]:
                near = " and ".join(f"{end / 1000}" for end in BUCKETS[self.buckets - 1 : self.buckets + 1])
                text += f", not {self.threshold_ms:f} ms: exact are {near}"
        return [text]


def _percent(ratio: Decimal) -> str:
    return f"{(ratio * 100).normalize():f} %"
