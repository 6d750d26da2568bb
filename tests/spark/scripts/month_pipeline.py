"""The pipeline of test_month.py, for `python -m lancetable.spark run`; MONTH_FOLDER is its folder."""

import os

from lancetable.spark.pipeline import Files, Pipeline

folder = os.environ["MONTH_FOLDER"]
month = Pipeline(
    "orders",
    f"{folder}/lake/orders.lance",
    key="id",
    newest_by="at",
    source=Files(f"{folder}/landing", format="csv", options={"header": "true", "inferSchema": "true"}),
    checkpoint=f"{folder}/checkpoint",
    schema="evolve",
    rejects=f"{folder}/lake/rejects.lance",
    max_reject_share=0.5,
    metrics=f"{folder}/lake/metrics.lance",
    keep_days=None,
)
