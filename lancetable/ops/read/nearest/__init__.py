"""Nearest-neighbour search: arguments, plans, execution, results and descriptions."""

from __future__ import annotations

from lancetable.ops.read.nearest.explain import analyze_nearest as analyze_nearest
from lancetable.ops.read.nearest.explain import explain_nearest as explain_nearest
from lancetable.ops.read.nearest.plan import NearestPlan as NearestPlan
from lancetable.ops.read.nearest.plan import plan_nearest as plan_nearest
from lancetable.ops.read.nearest.query import nearest_query as nearest_query
from lancetable.ops.read.nearest.results import count_nearest as count_nearest
from lancetable.ops.read.nearest.results import nearest_batches as nearest_batches
from lancetable.ops.read.nearest.results import nearest_table as nearest_table
