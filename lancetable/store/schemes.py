"""Address schemes and the packages that their stores need."""

from __future__ import annotations

from typing import Literal

from lancetable.errors import UnsupportedFeatureError

Cloud = Literal["s3", "gcs", "azure"]

CLOUD_OF_SCHEME: dict[str, Cloud] = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
}
EXTERNAL_SUFFIX = "+ddb"  # s3+ddb:// commits through a DynamoDB table


def not_installed(scheme: str, detail: str) -> UnsupportedFeatureError:
    """Return the error for a scheme whose package is not installed, with the extra that installs it or `detail`."""
    cloud = CLOUD_OF_SCHEME.get(scheme)
    remedy = f"pip install 'lancetable[{cloud}]'" if cloud else detail
    return UnsupportedFeatureError(f"{scheme}:// requires a package that is not installed: {remedy}", feature=scheme)
