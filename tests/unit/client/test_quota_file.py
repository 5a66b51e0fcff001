"""Files of quotas as `kbroker quotas apply` and the library read them."""

from pathlib import Path

from kbroker.client.quota_file import read_quota_file
from kbroker.common.quotas import QuotaEntity


def test_names_in_files_are_what_they_say(tmp_path: Path) -> None:
    """Quoted numbers, spaces and signs are names; only null is the default."""
    path = tmp_path / "q.yaml"
    path.write_text('- {entity: {user: "7", client-id: "<default>"}, quotas: {producer_byte_rate: 1}}\n')
    assert read_quota_file(path) == {
        QuotaEntity.of({"user": "7", "client-id": "<default>"}): {"producer_byte_rate": 1.0}
    }
