"""Distributed jobs of `SparkTable`. Each module contains the plan, the tasks and the commit of one operation."""
