//! Looks at the machine for what `placement = "auto"` depends on, and settles it.

use super::device::gpus;
use super::process;
use omni_config::{Config, DeviceKind, Found, Placed, placed};
use omni_core::ids::StageName;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Where a daemon of MPS is reached, unless the environment says otherwise.
const MPS: &str = "/tmp/nvidia-mps";
/// The environment's word for it, which the CUDA driver reads.
const MPS_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// Where each stage of a family runs on this machine, and why.
pub fn look(config: &Config, family: &[StageName], device: DeviceKind) -> Vec<Placed> {
    let folder =
        std::env::var_os(MPS_VARIABLE).filter(|value| !value.is_empty()).map_or_else(|| MPS.into(), PathBuf::from);
    let found = Found { device, mps: mps(&folder), program: process::binary().is_some() };
    placed(config, family, &found)
}

/// The same config with no placement and no number of replicas left open.
pub fn settle(config: &Config, family: &[StageName], device: DeviceKind) -> Config {
    let mut settled = config.clone();
    settled.settle_replicas(device, gpus(device));
    for Placed { stage, placement, why } in look(&settled, family, device) {
        if let Some(why) = why {
            tracing::info!(%stage, placement = placement.as_str(), why, "placement = \"auto\"");
        }
        settled.stages[stage as usize].placement = placement;
    }
    settled
}

/// The folder, if a daemon has its pipe there. Whether it answers the CUDA driver finds out, which looks into this folder
/// whatever the placement of a stage is.
fn mps(folder: &Path) -> Option<PathBuf> {
    let kind = std::fs::metadata(folder.join("control")).ok()?.file_type();
    (kind.is_fifo() || kind.is_socket()).then(|| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_daemon_is_there_where_its_pipe_is() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(mps(folder.path()), None);
        let control = folder.path().join("control");
        std::fs::write(&control, b"").unwrap();
        assert_eq!(mps(folder.path()), None, "a file is no pipe");
        std::fs::remove_file(&control).unwrap();
        let _daemon = UnixListener::bind(&control).unwrap();
        assert_eq!(mps(folder.path()).as_deref(), Some(folder.path()));
    }
}
