"""Jobs of `SparkTable`: for each verb the plan, the work of its tasks, and the commit."""

from lancetable.spark.jobs.add_columns import AddColumnsJob
from lancetable.spark.jobs.call import Call
from lancetable.spark.jobs.compact import CompactJob
from lancetable.spark.jobs.count import PlanCount
from lancetable.spark.jobs.delete import DeleteJob
from lancetable.spark.jobs.scan import PlanScan
from lancetable.spark.jobs.update import UpdateJob

__all__ = ["AddColumnsJob", "Call", "CompactJob", "PlanCount", "DeleteJob", "PlanScan", "UpdateJob"]
