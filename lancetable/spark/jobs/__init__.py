"""Jobs of `SparkTable`: for each verb the plan, the work of its tasks, and the commit."""
