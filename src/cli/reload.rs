//! Reads the config again while the server runs: on SIGHUP, and when a file of it has changed. A config that is wrong
//! changes nothing.

use super::run::RunArgs;
use omni_config::{Config, ConfigError, changed};
use omni_server::{RELOADED, Reloader};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info, warn};

/// How often the files are looked at. A file counts as changed when it is the same at two looks in a row, so that none is
/// read while it is being written.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// SIGHUP, caught from now on.
pub(super) struct Hangups(Signal);

impl Hangups {
    /// Takes the signal over from the system's default, which ends the process.
    pub fn catch() -> io::Result<Hangups> {
        Ok(Hangups(signal(SignalKind::hangup())?))
    }
}

/// What a file looked like: another one in its place looks different.
type Look = Option<(SystemTime, u64, u64)>;

/// The config that holds, and what it was made of.
pub(super) struct Watch {
    args: RunArgs,
    text: String,
    files: Vec<PathBuf>,
    /// How the files looked when they were read, and at the last look.
    read: Vec<Look>,
    seen: Vec<Look>,
    /// Why the config that is there does not hold. It may name a file that is still to come, which nobody watches.
    wrong: Option<String>,
}

impl Watch {
    /// Reads the config, and watches its files from then on.
    ///
    /// # Errors
    /// When the config is wrong.
    pub fn begin(args: RunArgs) -> Result<(Config, Watch), ConfigError> {
        // It takes a reading to know the files. They are looked at before the one that counts: of a change in between,
        // as while a process takes over from another, the watch would never hear.
        let files = files(&args, &args.resolve()?);
        let (text, read) = (text(args.config()), looks(&files));
        let config = args.resolve()?;
        let mut watch = Watch { args, text, files, seen: read.clone(), read, wrong: None };
        watch.take(&config);
        Ok((config, watch))
    }

    /// Never returns.
    pub async fn run(mut self, mut hangups: Hangups, server: Reloader) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let asked = tokio::select! {
                Some(()) = hangups.0.recv() => true,
                _ = looks.tick() => false,
            };
            let server = server.clone();
            // Reads files, which may take long, or for ever.
            let looked = tokio::task::spawn_blocking(move || {
                if asked || self.has_changed() {
                    self.reload(&server, asked);
                }
                self
            });
            match looked.await {
                Ok(watch) => self = watch,
                Err(error) => return error!(%error, "the config is not watched any more; restart to change it"),
            }
        }
    }

    fn has_changed(&mut self) -> bool {
        let seen = looks(&self.files);
        let rests = seen == self.seen;
        self.seen = seen;
        rests && (self.seen != self.read || self.wrong.is_some())
    }

    fn reload(&mut self, server: &Reloader, asked: bool) {
        // Looked at before they are read: what changes meanwhile is read again.
        self.read = looks(&self.files);
        self.seen.clone_from(&self.read);
        let text = text(self.args.config());
        let config = match self.args.resolve() {
            Ok(config) => config,
            Err(wrong) => return self.refuse(wrong.to_string().replace('\n', "; "), asked),
        };
        if let Err(wrong) = server.apply(&config) {
            return self.refuse(wrong.to_string(), asked);
        }
        self.wrong = None;
        let (now, later): (Vec<_>, Vec<_>) =
            changed(&self.text, &text).into_iter().partition(|key| RELOADED.iter().any(|known| key.starts_with(known)));
        info!(changed = now.join(", "), keys = config.server.keys.len(), "config reloaded");
        if !later.is_empty() {
            warn!(changed = later.join(", "), "these keys of the config hold after a restart only");
        }
        self.text = text;
        self.take(&config);
    }

    /// The old config holds. What is wrong is told once, and whenever it is asked for.
    fn refuse(&mut self, wrong: String, asked: bool) {
        if asked || self.wrong.as_ref() != Some(&wrong) {
            error!(wrong, "the new config is wrong; the old one holds");
        }
        self.wrong = Some(wrong);
    }

    /// Watches the files of this config from now on. One that was not named before was read unseen: it is read again.
    fn take(&mut self, config: &Config) {
        let files = files(&self.args, config);
        let look = |path| self.files.iter().position(|known| known == path).and_then(|at| self.read[at]);
        self.read = files.iter().map(look).collect();
        self.seen.clone_from(&self.read);
        self.files = files;
    }
}

/// The config and the files that it names and that may change.
fn files(args: &RunArgs, config: &Config) -> Vec<PathBuf> {
    let keys = config.server.keys.iter().filter_map(|key| key.file.clone());
    let tls = config.server.access.tls.iter().flat_map(|tls| [tls.certificate.clone(), tls.key.clone()]);
    args.config().map(Path::to_owned).into_iter().chain(keys).chain(tls).collect()
}

fn looks(files: &[PathBuf]) -> Vec<Look> {
    use std::os::unix::fs::MetadataExt;
    let look = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
    };
    files.iter().map(look).collect()
}

/// The config file, to compare with; empty if it cannot be read, which the config's own reader tells.
fn text(path: Option<&Path>) -> String {
    path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
}
