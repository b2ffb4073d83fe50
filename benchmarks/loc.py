"""What the meter of features costs in time: adding features to the catalogue, and tracing a family.

The first figure is the full catalogue's, at its published sizes, without building a model.
"""

import time
from typing import Any

from _record import record

from axcore.complexity import measure_feature
from axcore.errors import ConfigError
from axcore.plugins import Experiment, Feature, plugin_host

GOALS = {"slowest_feature_on_the_catalogue_s": 1.0}


def seconds_to_add(feature: Feature, catalogue: list[Any]) -> float:
    """Return how long it takes to add a feature to every experiment that does not have it."""
    apply = feature.apply.resolve()
    started = time.perf_counter()
    for cfg in catalogue:
        try:
            apply(cfg)
        except ConfigError:  # the experiment has the feature, and says so
            continue
    return time.perf_counter() - started


def main() -> None:
    catalogue = [one.fn.resolve()() for one in plugin_host().records(Experiment)]
    features = [one for one in plugin_host().records(Feature) if one.apply is not None]
    added = {one.name: seconds_to_add(one, catalogue) for one in features}
    measured = {}
    for feature in features:
        started = time.perf_counter()
        measure_feature(feature)
        measured[feature.name] = round(time.perf_counter() - started, 2)
    figures = {
        "experiments": len(catalogue),
        "seconds_to_add_to_the_catalogue": {name: round(s, 4) for name, s in added.items()},
        "slowest_feature_on_the_catalogue_s": round(max(added.values()), 4),
        "seconds_to_measure_on_256_models": measured,
        "goals": GOALS,
    }
    print(f"slowest feature on {len(catalogue)} experiments: {max(added.values()):.3f} s")
    print(f"measuring {len(measured)} features: {sum(measured.values()):.0f} s in all")
    print(record("loc", figures))


if __name__ == "__main__":
    main()
