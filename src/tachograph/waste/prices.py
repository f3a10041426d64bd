"""What GPU-hours and energy cost, where a price is configured."""

from __future__ import annotations

import polars as pl

from tachograph.config import Waste

JOULES_PER_KWH = 3.6e6


def with_money(jobs: pl.DataFrame, settings: Waste) -> pl.DataFrame:
    """Return rows of job_summaries with `price`, of a GPU-hour, and `price_kwh`; null: none is configured.

    Of `waste.prices` the price of its partition counts, else that of its model, else `price_per_gpu_hour`.

    >>> settings = Waste(price_per_gpu_hour=1.0, prices={"L40S": 1.5, "debug": 0.5})
    >>> jobs = pl.DataFrame({"partition": ["debug", "gpu", None], "gpu_model": ["L40S", "L40S", None]})
    >>> with_money(jobs, settings)["price"].to_list()
    [0.5, 1.5, 1.0]
    """
    general = pl.lit(settings.price_per_gpu_hour or None, dtype=pl.Float64)
    price = pl.coalesce(*(_of(column, settings.prices) for column in ("partition", "gpu_model")), general)
    return jobs.with_columns(price=price, price_kwh=pl.lit(settings.price_per_kwh or None, dtype=pl.Float64))


def _of(column: str, prices: dict[str, float]) -> pl.Expr:
    return pl.col(column).replace_strict(prices, default=None, return_dtype=pl.Float64) if prices else pl.lit(None)
