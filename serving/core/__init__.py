"""Parts that know no protocol: admission, scheduling, models, cache and metrics."""
