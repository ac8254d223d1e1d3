//! What both sides say of themselves, and how it travels.

use crate::StartError;
use crate::device::DeviceChoice;
use bytes::Bytes;
use omni_cluster::{ClusterError, Settings, Tls};
use omni_config::{ClusterConfig, ClusterTls, Config, DeviceKind};
use omni_core::nodes::{PROTOCOL, Terms};
use omni_model::checkpoint::Checkpoint;
use omni_transfer::link::{append, take};

/// Why a node that is drained opens no link, and why its links end.
pub(super) const DRAINED: &str = "the node is drained; `omni-actors drain NODE --undo` puts it back";
/// Why the links of a node end that was asked to end.
pub(super) const ENDS: &str = "the node ends";

/// Nodes that may leave with one question, and questions about that at the same time.
pub(super) const MOST_LEAVE: usize = 4096;
pub(super) const MOST_ASKING: usize = 64;

/// Whether a link ended because its node leaves on purpose, by what this side knows of its end.
pub(super) fn leaves(reason: &str) -> bool {
    reason.ends_with(DRAINED) || reason.ends_with(ENDS)
}

/// Where to meet, as the config says.
pub(super) fn settings(config: &ClusterConfig) -> Settings {
    let tls = |tls: &ClusterTls| Tls { ca: tls.ca.clone(), certificate: tls.certificate.clone(), key: tls.key.clone() };
    Settings {
        listen: config.listen.map(|address| address.to_string()),
        join: config.join.clone(),
        tls: config.tls.as_ref().map(tls),
        silence: config.silence,
    }
}

/// What a gateway and its nodes must have in common. Reads some of each tensor.
pub(super) async fn terms(checkpoint: &Checkpoint) -> Result<Terms, StartError> {
    let checkpoint = checkpoint.clone();
    let print = tokio::task::spawn_blocking(move || checkpoint.fingerprint()).await;
    let print = print.map_err(|error| StartError::Failed(format!("model.checkpoint: {error}")))?;
    Ok(Terms { protocol: PROTOCOL, program: env!("CARGO_PKG_VERSION").to_owned(), checkpoint: print? })
}

/// What decides the last bits of samples besides the checkpoint.
pub(super) fn arithmetic(device: &DeviceChoice) -> String {
    let dtype = device.dtype.as_str();
    match device.kind {
        // Every instruction set with fused products has the same bits.
        DeviceKind::Cpu if fuses() => format!("{dtype} with fused products"),
        DeviceKind::Cpu => format!("{dtype} without fused products"),
        DeviceKind::Cuda => format!("{dtype} on a GPU, {} in the vocoder", device.vocoder_dtype.as_str()),
    }
}

fn fuses() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// Why no session was opened. With such files it never is; an address in use may be free later.
pub(super) fn unusable(error: ClusterError) -> StartError {
    let told = format!("cluster: {error}");
    match error {
        ClusterError::Certificate(_) => StartError::Config(told),
        ClusterError::Session(_) | ClusterError::Refused(_) => StartError::Failed(told),
    }
}

/// Whether the files of the config can be used.
pub(super) fn check_files(config: &ClusterConfig) -> Result<(), StartError> {
    settings(config).tls.map_or(Ok(()), |tls| tls.check()).map_err(unusable)
}

pub(super) fn encoded(message: &impl bincode::Encode) -> Result<Bytes, StartError> {
    let mut bytes = Vec::new();
    append(message, &mut bytes).map_err(|error| StartError::Config(format!("cluster: {error}")))?;
    Ok(bytes.into())
}

/// `None` for what another version may mean something by.
pub(super) fn decoded<M: bincode::Decode<()>>(bytes: &Bytes) -> Option<M> {
    take(&mut &bytes[..]).ok()
}

/// The name of a node for people.
pub(super) fn name(config: &Config) -> String {
    let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    config.cluster.name.clone().unwrap_or_else(machine)
}
