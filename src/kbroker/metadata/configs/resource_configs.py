"""Configs of resources in the metadata, and the records that change them."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.mapping_delta import differences
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record


def config_records(
    resource_type: int, name: str, before: Mapping[str, str], after: Mapping[str, str]
) -> list[MetadataRecord]:
    """Return the records that change the configs of a resource from ``before`` to ``after``."""
    of_resource = {"ResourceType": resource_type, "ResourceName": name}
    return [
        metadata_record("ConfigRecord", {**of_resource, "Name": key, "Value": value})
        for key, value in differences(before, after).items()
    ]


def broker_configs(image: MetadataImage, node_id: int) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the dynamic configs of a broker, and those set for all brokers."""
    of = image.configs.get
    return of((ConfigResourceType.BROKER, str(node_id)), {}), of((ConfigResourceType.BROKER, ""), {})
