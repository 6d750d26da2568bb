"""Storage options of cloud stores, parsed once and translated for the client.

    storage_options            aws_access_key_id, AWS_REGION, allow_http ...    names of the object_store crate, also
                                                                                accepted by pylance
                               key, secret, endpoint_url, anon ...              names of s3fs, gcsfs and adlfs
    CloudOptions.config        access_key_id, region, endpoint ...              one canonical name for each option
    CloudOptions.client        allow_http, timeout, proxy_url ...               options of the HTTP client
    CloudOptions.unknown       everything else

Missing options are read from the cloud's environment variables when a client is created, not before: a pickle contains
only the options that the caller passed.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from lancetable import telemetry
from lancetable.errors import InvalidInputError
from lancetable.store.base import Capabilities
from lancetable.store.schemes import Cloud

logger = logging.getLogger(__name__)


def _words(string: str) -> frozenset[str]:
    return frozenset(string.split())


# Options of this library, and options of pylance that other modules read or that have no effect here.
OWN_OPTIONS = _words(
    """
    fsync mmap unsafe_single_writer untrusted client probe manifest_store dynamodb_endpoint download_retry_count
    expires_at_millis refresh_offset_millis lance_io_threads
    """
)
_SECRET_WORDS = ("key", "secret", "token", "password", "passwd", "sas", "connection_string", "credential", "auth")
_NOT_SECRET = frozenset(("sse_bucket_key_enabled", "sse_kms_key_id"))
_USER_AND_PASSWORD = re.compile("(?<=://)[^/@]+(?=@)")  # in an endpoint or the address of a proxy

CLIENT_NAMES = _words(
    """
    allow_http allow_invalid_certificates connect_timeout default_content_type http1_only http2_only
    http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle pool_idle_timeout
    pool_max_idle_per_host proxy_url proxy_ca_certificate proxy_excludes randomize_addresses read_timeout
    timeout user_agent default_headers root_certificate
    """
)
# Options of the HTTP client that clients other than obstore support.
SIMPLE_CLIENT_OPTIONS = frozenset(
    ("allow_http", "allow_invalid_certificates", "connect_timeout", "read_timeout", "timeout")
)
RETRY_NAMES = frozenset(("client_max_retries", "client_retry_timeout"))
NAMES: dict[Cloud, frozenset[str]] = {
    "s3": _words(
        """
        access_key_id secret_access_key session_token region endpoint virtual_hosted_style_request s3_express
        imdsv1_fallback metadata_endpoint unsigned_payload checksum_algorithm
        container_credentials_relative_uri container_credentials_full_uri role_arn role_session_name
        container_authorization_token_file web_identity_token_file sts_endpoint skip_signature
        copy_if_not_exists conditional_put disable_tagging disable_bulk_delete request_payer
        server_side_encryption sse_kms_key_id sse_bucket_key_enabled sse_customer_key_base64
        """
    ),
    "gcs": _words(
        """
        service_account service_account_key base_url application_credentials bearer_token skip_signature
        """
    ),
    "azure": _words(
        """
        account_name account_key client_id client_secret tenant_id authority_host sas_key token use_emulator
        endpoint msi_endpoint object_id msi_resource_id federated_token_file use_fabric_endpoint
        use_azure_cli skip_signature disable_tagging fabric_token_service_url fabric_workload_host
        fabric_session_token fabric_cluster_identifier encryption_key credential_type
        """
    ),
}
PREFIXES: dict[Cloud, tuple[str, ...]] = {
    "s3": ("aws_",),
    "gcs": ("google_",),
    "azure": ("azure_storage_", "azure_"),
}
SYNONYMS: dict[Cloud, dict[str, str]] = {
    "s3": {
        "endpoint_url": "endpoint",
        "endpoint_url_s3": "endpoint",
        "endpoint_url_sts": "sts_endpoint",
        "token": "session_token",
        "default_region": "region",
        "region_name": "region",
        "key": "access_key_id",
        "username": "access_key_id",
        "secret": "secret_access_key",
        "password": "secret_access_key",
        "anon": "skip_signature",
    },
    "gcs": {
        "service_account_path": "service_account",
        "endpoint_url": "base_url",
        "endpoint": "base_url",
        "storage_token": "bearer_token",
    },
    "azure": {
        "access_key": "account_key",
        "master_key": "account_key",
        "sas_token": "sas_key",
        "bearer_token": "token",
        "authority_id": "tenant_id",
        "identity_endpoint": "msi_endpoint",
        "anon": "skip_signature",
    },
}
# Environment variables of each cloud, in order of precedence.
ENVIRONMENT: dict[Cloud, tuple[str, ...]] = {
    "s3": (
        "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_REGION", "AWS_DEFAULT_REGION",
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SKIP_SIGNATURE",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_ALLOW_HTTP",
    ),
    "gcs": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BASE_URL", "GOOGLE_SKIP_SIGNATURE"),
    "azure": (
        "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ENDPOINT",
        "AZURE_STORAGE_USE_EMULATOR", "AZURE_ALLOW_HTTP",
    ),
}  # fmt: skip
# Credentials from the environment are used only if the caller passed none, so that two identities are never mixed.
_CREDENTIAL_OPTIONS: dict[Cloud, frozenset[str]] = {
    "s3": frozenset(("access_key_id", "secret_access_key", "session_token", "skip_signature")),
    "gcs": frozenset(("service_account", "service_account_key", "bearer_token", "skip_signature")),
    "azure": frozenset(("account_key", "sas_key", "token", "client_secret", "skip_signature")),
}
_TRUSTED_HOSTS: dict[Cloud, re.Pattern[str]] = {
    "s3": re.compile(r"(?:.+\.)?amazonaws\.com(?:\.cn)?"),
    "gcs": re.compile(r"(?:.+\.)?googleapis\.com"),
    "azure": re.compile(r".+\.(?:blob|dfs)\.(?:core\.windows\.net|fabric\.microsoft\.com|core\.chinacloudapi\.cn)"),
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|sec|seconds?|m|min|minutes?)?")
_UNIT_SECONDS = {"ms": 0.001, "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0}


@dataclass(frozen=True, slots=True)
class CloudOptions:
    """Parsed options of one store. Its repr hides secrets; its pickle contains them."""

    cloud: Cloud
    config: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)
    retry: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, cloud: Cloud, storage_options: Mapping[str, Any] | None) -> CloudOptions:
        """Parse options given under any of their names. None values are ignored.

        Raises InvalidInputError if two names of one option have different values.
        """
        config: dict[str, str] = {}
        client: dict[str, Any] = {}
        retry: dict[str, str] = {}
        unknown: dict[str, Any] = {}
        for given, value in _flatten(cloud, storage_options or {}):
            name = given.lower()
            if value is None or name in OWN_OPTIONS or (name.startswith("base_") and name != "base_url"):
                continue
            plain = "timeout" if name == "request_timeout" else name
            plain = "allow_http" if name.endswith("_allow_http") else plain
            canonical = _canonical(cloud, name)
            if plain in CLIENT_NAMES:
                client[plain] = value
            elif name in RETRY_NAMES:
                retry[name] = str(value)
            elif canonical is not None and isinstance(value, (str, bool, int)):
                string = str(value).lower() if isinstance(value, bool) else str(value)
                if config.get(canonical, string) != string:
                    raise InvalidInputError(
                        f"storage option {canonical} (also {given}) has two different values; pass it once"
                    )
                config[canonical] = string
            else:
                unknown[given] = value
        return cls(cloud, config, client, retry, unknown)

    def __repr__(self) -> str:
        shown = hide_secrets({**self.config, **self.client, **self.retry, **self.unknown})
        return f"CloudOptions({self.cloud!r}, {shown!r})"

    @property
    def secrets(self) -> list[str]:
        """Secret values, which no message may contain."""
        return list(secrets_in({**self.config, **self.client, **self.unknown}))

    def with_environment(self) -> CloudOptions:
        """Return a copy completed from the cloud's environment variables."""
        config, client = dict(self.config), dict(self.client)
        credential_names = _CREDENTIAL_OPTIONS[self.cloud]
        has_credentials = any(name in config for name in credential_names)
        for variable in ENVIRONMENT[self.cloud]:
            value = os.environ.get(variable)
            name = variable.lower()
            if not value:
                continue
            if name.endswith("_allow_http"):
                client.setdefault("allow_http", value)
                continue
            canonical = _canonical(self.cloud, name)
            if canonical is not None and not (has_credentials and canonical in credential_names):
                config.setdefault(canonical, value)
        return CloudOptions(self.cloud, config, client, self.retry, self.unknown)

    @property
    def endpoint(self) -> str | None:
        """Server address if one was passed, without a slash at the end."""
        endpoint = self.config.get("base_url" if self.cloud == "gcs" else "endpoint")
        return endpoint.rstrip("/") if endpoint else None

    @property
    def endpoint_is_known(self) -> bool:
        """True if requests are sent to the cloud provider itself, whose conditional create is documented."""
        if self.is_on("use_emulator"):
            return False
        endpoint = self.endpoint
        if endpoint is None:
            return True
        host = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}").hostname or ""
        return _TRUSTED_HOSTS[self.cloud].fullmatch(host) is not None

    def is_on(self, name: str) -> bool:
        """Return the value of a boolean option, False if it was not given."""
        value = self.config.get(name, self.client.get(name, "false"))
        return str(value).strip().lower() in ("1", "true", "yes", "on")

    def seconds(self, name: str, default: float) -> float:
        """Return a duration such as "30s" or "500ms" in seconds. Raises InvalidInputError for any other value."""
        value = self.client.get(name, self.retry.get(name))
        if value is None:
            return default
        match = _DURATION.fullmatch(str(value).strip())
        if match is None:
            raise InvalidInputError(f"storage option {name}: expected a duration such as 30s, got {value!r}")
        return float(match[1]) * _UNIT_SECONDS.get(match[2] or "s", 1.0)


def capabilities_of(bucket: str, *, needs_probe: bool) -> Capabilities:
    """Return the capabilities of a store in the cloud. S3 directory buckets return unordered listings."""
    is_ordered = not bucket.endswith("--x-s3")
    return Capabilities("native", is_ordered, durable=True, local=False, parallel=True, needs_probe=needs_probe)


@cache
def names_of(cloud: Cloud) -> frozenset[str]:
    """Return all names of options that the stores of a cloud accept."""
    plain = NAMES[cloud] | frozenset(SYNONYMS[cloud])
    prefixed = {f"{prefix}{name}" for prefix in PREFIXES[cloud] for name in plain}
    return plain | prefixed | CLIENT_NAMES | RETRY_NAMES | OWN_OPTIONS | {"request_timeout"}


@cache
def check_option(name: str, place: str, cloud: Cloud | None = None) -> None:
    """Raise InvalidInputError for an unknown storage option whose name resembles a known one.

    The known options are those of `cloud`, or those of all clouds if it is None. Any other option without an effect is
    only logged, once, because several libraries may share one set of options. Values are never shown.
    """
    lowered = name.lower()
    known = frozenset().union(*(names_of(service) for service in NAMES))
    is_known = lowered in known or lowered.endswith(("_allow_http", "_kwargs")) or lowered.startswith("base_")
    matches = get_close_matches(lowered, names_of(cloud) if cloud else known, n=1, cutoff=0.8)
    if matches and not is_known:
        raise InvalidInputError(f"unknown storage option {name!r}; did you mean {matches[0]}?")
    if cloud or not is_known:
        logger.warning(
            "storage option %r is unknown and has no effect on %s",
            name,
            place,
            extra=telemetry.fields("store.option_unknown", option=name),
        )


def hide_secrets(options: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return options for display, with secrets replaced, also in nested options such as `client_kwargs` of s3fs."""
    return {name: "***" if _is_secret(name) else _hide_in_value(value) for name, value in options.items()}


def _hide_in_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return hide_secrets(value)
    return _USER_AND_PASSWORD.sub("***", value) if isinstance(value, str) else value


def secrets_in(options: Mapping[Any, Any], secret: bool = False) -> Iterator[str]:
    """Yield the secrets of at least four characters, and passwords in addresses; with `secret`, all such strings."""
    for name, value in options.items():
        hidden = secret or _is_secret(name)
        if isinstance(value, Mapping):
            yield from secrets_in(value, hidden)
        elif hidden and isinstance(value, str) and len(value) >= 4 and value.lower() not in ("true", "false"):
            yield value
        elif isinstance(value, str):
            yield from _USER_AND_PASSWORD.findall(value)


def _is_secret(name: object) -> bool:
    lowered = str(name).lower()
    return lowered not in _NOT_SECRET and any(word in lowered for word in _SECRET_WORDS)


def _flatten(cloud: Cloud, options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all options. Nested fsspec options that have an equivalent in obstore are yielded under that name."""
    for name, value in options.items():
        if cloud == "s3" and name == "client_kwargs" and isinstance(value, Mapping):
            inner = dict(value)
            for key in ("region_name", "endpoint_url"):
                if key in inner:
                    yield key, inner.pop(key)
            if inner:
                yield name, inner
        elif cloud == "gcs" and name == "token":
            if value == "anon":
                yield "skip_signature", "true"
            elif isinstance(value, str) and value.endswith(".json"):
                yield "application_credentials", value
            else:
                yield name, value
        else:
            yield name, value


def _canonical(cloud: Cloud, name: str) -> str | None:
    """Return the canonical name of an option, or None if this cloud has no such option."""
    names, synonyms = NAMES[cloud], SYNONYMS[cloud]
    for prefix in ("", *PREFIXES[cloud]):
        if name.startswith(prefix):
            rest = name[len(prefix) :]
            canonical = synonyms.get(rest, rest)
            if canonical in names:
                return canonical
    return None
