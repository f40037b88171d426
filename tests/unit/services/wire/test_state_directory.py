"""What a service keeps is for its own user's eyes."""

import os
import stat

import pytest

from parley.services.coordinator.config import CoordinatorConfig
from parley.services.wire.configuration import ConfigInvalid, load_config
from parley.services.wire.state_directory import close_to_others


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}


def test_what_earlier_versions_left_readable_is_closed_to_others(tmp_path):
    state = tmp_path / "state"
    (state / "runs").mkdir(parents=True)
    (state / "runs" / "suspects.csv").write_text("id,label\n")
    (state / "coordinator.db").write_text("")
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    (state / "link").symlink_to(outside)
    for path in (state, state / "runs"):
        path.chmod(0o755)
    close_to_others(state)
    found = modes(state)
    assert (found["state"], found["runs"], found["suspects.csv"], found["coordinator.db"]) == (
        0o700,
        0o700,
        0o600,
        0o600,
    )
    assert stat.S_IMODE(os.stat(outside).st_mode) == 0o644


@pytest.mark.parametrize(("listen", "refused"), [("127.0.0.1:0", False), ("[::1]:0", False), ("0.0.0.0:80", True)])
def test_plain_http_is_for_this_machine_only(tmp_path, listen, refused):
    path = tmp_path / "coordinator.yaml"
    path.write_text(
        "name: c\nidentity: i\nstate: s\nparties: {}\nlabels: {}\n"
        f"web: {{listen: '{listen}', insecure_http: true}}\n"
    )
    if refused:
        with pytest.raises(ConfigInvalid, match="insecure_http"):
            load_config(path, CoordinatorConfig)
    else:
        assert load_config(path, CoordinatorConfig).web.insecure_http
