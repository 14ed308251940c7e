from __future__ import annotations

import re

from citeweave.serve.metrics import Metrics

LINE = re.compile(r'^[a-z_]+(?:\{[a-z]+="[^"\n]*"(?:,[a-z]+="[^"\n]*")*\})? -?[0-9.e+]+$')


def filled() -> Metrics:
    metrics = Metrics()
    for seconds in (0.0004, 0.004, 0.004, 99.0):
        metrics.count_request("/search", "GET", 200, seconds)
    metrics.count_request("other", "BREW", 405, 0.1)
    metrics.count_refused("rate")
    metrics.count_batch(3)
    metrics.begin_request()
    return metrics


def test_every_line_has_the_form_that_prometheus_reads() -> None:
    lines = filled().text({"papers": {"main": 19}}).splitlines()
    assert [line for line in lines if not line.startswith("# ") and not LINE.match(line)] == []
    named = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    used = {re.sub(r"_(bucket|sum|count)$", "", re.split(r"[ {]", line)[0]) for line in lines if line[0] != "#"}
    assert used <= named


def test_buckets_are_cumulative() -> None:
    text = filled().text()
    buckets = [int(n) for n in re.findall(r'request_seconds_bucket\{route="/search",le="[^"]+"\} (\d+)', text)]
    assert buckets == sorted(buckets) and buckets[0] == 1 and buckets[-2:] == [3, 4]
    assert 'citeweave_request_seconds_count{route="/search"} 4' in text
    assert 'citeweave_request_seconds_sum{route="/search"} 99.008400' in text


def test_counts() -> None:
    text = filled().text({"papers": {'a"b': 19}})
    for line in (
        'citeweave_requests_total{route="/search",method="GET",status="200"} 4',
        'citeweave_requests_total{route="other",method="other",status="405"} 1',
        'citeweave_refused_total{limit="rate"} 1',
        'citeweave_encoded_texts_bucket{le="2"} 0',
        'citeweave_encoded_texts_bucket{le="4"} 1',
        "citeweave_requests_running 1",
        'citeweave_papers{index="a\\"b"} 19',
    ):
        assert line in text.splitlines(), line
