//! Signs the certificates of hosts that are all on this machine.

use omni_config::ClusterTls;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// See the module. Its files go with it.
pub struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, which nobody knows.
    ///
    /// # Errors
    /// Its certificate cannot be written into a folder of temporary files.
    pub fn new() -> anyhow::Result<Authority> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        // Keys lie in it: the folder is its owner's alone.
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("ca.pem"), issuer.pem())?;
        Ok(Authority { folder, issuer })
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file of its own certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate for this machine, and its key, in files of this name.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn certify(&self, name: &str) -> anyhow::Result<ClusterTls> {
        self.certify_at(name, Ipv4Addr::LOCALHOST)
    }

    /// The same for a host at this address, which calls itself `localhost`, too.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn certify_at(&self, name: &str, address: Ipv4Addr) -> anyhow::Result<ClusterTls> {
        let key = KeyPair::generate()?;
        let params = CertificateParams::new(vec!["localhost".to_owned(), address.to_string()])?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let file = |ending: &str, content: String| {
            let path = self.folder.path().join(format!("{name}.{ending}"));
            std::fs::write(&path, content).map(|()| path)
        };
        let (certificate, key) = (file("pem", certificate.pem())?, file("key", key.serialize_pem())?);
        Ok(ClusterTls { ca: self.ca(), certificate, key })
    }
}
