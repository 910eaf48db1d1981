"""Percentiles by numpy, for the tests of npuc-bench: tests/data/bench/percentiles.json.

    python tools/make_percentile_fixtures.py > tests/data/bench/percentiles.json
"""

import json

import numpy

QUANTILES = [0, 1, 2.5, 25, 50, 75, 90, 95, 97.5, 99, 99.9, 100]


def cases():
    random = numpy.random.default_rng(20260101)
    yield "one", [3.25]
    yield "two", [1.0, 2.0]
    yield "equal", [7.5] * 9
    yield "small", [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    yield "negative", [-1.5, 0.0, 2.5, -8.0, 1e-9]
    for count in (3, 10, 39, 40, 160):
        yield f"latencies {count}", numpy.round(random.lognormal(4.0, 0.5, count), 6).tolist()
    yield "far apart", [1e-6, 1.0, 1e6, 1e12]


def main():
    out = []
    for name, values in cases():
        percentiles = [[q / 100, float(numpy.percentile(values, q, method="linear"))] for q in QUANTILES]
        out.append({"name": name, "values": values, "quantiles": percentiles, "mean": float(numpy.mean(values))})
    print(json.dumps({"numpy": numpy.__version__, "cases": out}, indent=1))


if __name__ == "__main__":
    main()
