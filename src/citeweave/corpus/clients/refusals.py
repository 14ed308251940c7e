"""What a service means when it refuses: wait a little, or come back tomorrow.

    429, Retry-After: 2                                burst: wait 2 seconds and go on
    429, X-RateLimit-Remaining: 0, ...-Reset: 11987    the day's budget is gone: stop, renewed in 11,987 seconds
    503                                                trouble on their side: wait, longer each time

OpenAlex tells both kinds of 429 apart by its headers (X-RateLimit-Reset is in seconds from now); Semantic Scholar has only
the first kind. Does not wait or ask: see `http.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

_DAY = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """What to do about a refused request."""

    wait: float | None
    """Seconds the service asks to wait, None where it does not say."""

    budget_gone: bool = False
    """True where waiting is in vain before the allowance is renewed, in `wait` seconds."""


def read_refusal(headers: Mapping[str, str], now: datetime, longest_wait: float) -> Refusal:
    """Tell what the headers of a refusal mean. A wait longer than `longest_wait` is as good as a budget that is gone."""
    told = {name.lower(): value for name, value in headers.items()}
    wait = retry_after(told.get("retry-after", ""), now)
    if _is_budget_gone(told):
        reset = _number(told.get("x-ratelimit-reset"))
        usable = reset is not None and 0 < reset <= 2 * _DAY
        renewed = reset if usable and reset is not None else seconds_to_midnight(now)
        return Refusal(renewed, budget_gone=True)
    return Refusal(wait, budget_gone=wait is not None and wait > longest_wait)


def _is_budget_gone(told: dict[str, str]) -> bool:
    for left, needed in (
        ("x-ratelimit-remaining", "x-ratelimit-credits-required"),
        ("x-ratelimit-remaining-usd", "x-ratelimit-cost-required-usd"),
    ):
        remaining, required = _number(told.get(left)), _number(told.get(needed)) or 0.0
        if remaining is not None and (remaining <= 0 or remaining < required):
            return (_number(told.get("x-ratelimit-onetime-remaining")) or 0.0) <= required
    return False


def retry_after(value: str, now: datetime) -> float | None:
    """Seconds in a Retry-After header, which is a number of seconds or an HTTP date (RFC 9110, 10.2.3).

    >>> now = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
    >>> retry_after("120", now), retry_after("Sun, 01 Mar 2026 12:00:30 GMT", now), retry_after("soon", now)
    (120.0, 30.0, None)
    >>> retry_after("Sun, 01 Mar 2026 11:00:00 GMT", now)
    0.0
    """
    seconds = _number(value.strip())
    if seconds is not None:
        return max(0.0, seconds)
    try:
        then = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, (then - now).total_seconds())


def seconds_to_midnight(now: datetime) -> float:
    """Seconds to the next midnight of UTC, when daily budgets are renewed.

    >>> seconds_to_midnight(datetime(2026, 3, 1, 23, 59, 30, tzinfo=UTC))
    30.0
    """
    tomorrow = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return (tomorrow - now).total_seconds()


def at_clock(now: datetime, seconds: float) -> str:
    """When something comes that is so many seconds away.

    >>> at_clock(datetime(2026, 3, 1, 23, 0, tzinfo=UTC), 3600), at_clock(datetime(2026, 3, 1, tzinfo=UTC), 1e18)
    ('2026-03-02 00:00 UTC', 'far in the future')
    """
    try:
        return (now + timedelta(seconds=seconds)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except OverflowError:
        return "far in the future"


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
