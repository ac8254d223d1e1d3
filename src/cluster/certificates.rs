//! Whether the files of `[cluster]` can be used. Zenoh would say only that no connection was made.

use super::session::{ClusterError, Tls};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{CertificateError, Error, RootCertStore};

impl Tls {
    /// Whether the key is that of the certificate, and the authority has signed it.
    ///
    /// # Errors
    /// [`ClusterError::Certificate`] with the file and what is wrong with it; [`ClusterError::Session`] if it is not valid at
    /// this time of day.
    pub fn check(&self) -> Result<(), ClusterError> {
        let (authority, chain) = (certificates(&self.ca)?, certificates(&self.certificate)?);
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| wrong(&self.key, error))?;
        let provider = Arc::new(ring::default_provider());
        CertifiedKey::from_der(chain.clone(), key, &provider).map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                wrong(&self.key, format!("it is not the key of {}", self.certificate.display()))
            }
            error => wrong(&self.key, error),
        })?;
        let mut roots = RootCertStore::empty();
        for certificate in authority {
            roots.add(certificate).map_err(|error| wrong(&self.ca, error))?;
        }
        let Some((own, between)) = chain.split_first() else { return Ok(()) };
        let (roots, now) = (Arc::new(roots), UnixTime::now());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let clients = clients.map_err(|error| wrong(&self.ca, error))?;
        let mut judged = clients.verify_client_cert(own, between, now).map(|_| ());
        if let Err(Error::InvalidCertificate(
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
        )) = judged
        {
            // One that is for servers alone is enough for a side that only listens.
            let servers = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
            let servers = servers.map_err(|error| wrong(&self.ca, error))?;
            let name = ServerName::from(std::net::Ipv4Addr::LOCALHOST);
            judged = servers.verify_server_cert(own, between, &name, &[], now).map(|_| ());
        }
        match judged {
            Ok(()) => Ok(()),
            Err(Error::InvalidCertificate(error)) => self.judged(error),
            Err(error) => Err(wrong(&self.certificate, error)),
        }
    }

    fn judged(&self, error: CertificateError) -> Result<(), ClusterError> {
        let file = &self.certificate;
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Err(later(file, "it has expired")),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Err(later(file, "it is not valid yet"))
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Err(wrong(file, format!("{} has not signed it", self.ca.display())))
            }
            // By which name others reach it is theirs to check, behind all else.
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Ok(()),
            error => Err(wrong(file, Error::InvalidCertificate(error))),
        }
    }
}

/// At least one.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ClusterError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(read) if read.is_empty() => Err(wrong(file, "there is no certificate in it")),
        Ok(read) => Ok(read),
        Err(error) => Err(wrong(file, error)),
    }
}

fn wrong(file: &Path, what: impl std::fmt::Display) -> ClusterError {
    ClusterError::Certificate(format!("{}: {what}", file.display()))
}

fn later(file: &Path, what: &str) -> ClusterError {
    ClusterError::Session(format!("{}: {what}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
    };
    use std::path::PathBuf;

    struct Authority(CertifiedIssuer<'static, KeyPair>);

    impl Authority {
        fn new() -> Authority {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
        }

        /// A certificate and its key, valid in these years.
        fn certify(&self, from: i32, to: i32) -> (String, String) {
            self.certify_for(Vec::new(), from, to)
        }

        fn certify_for(&self, usages: Vec<ExtendedKeyUsagePurpose>, from: i32, to: i32) -> (String, String) {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
            params.extended_key_usages = usages;
            let key = KeyPair::generate().unwrap();
            (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
        }
    }

    #[test]
    fn what_is_wrong_with_a_certificate_is_told_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let (authority, stranger) = (Authority::new(), Authority::new());
        let ca = file("ca.pem", &authority.0.pem());
        let (own, its_key) = authority.certify(2000, 4000);
        let (certificate, key) = (file("own.pem", &own), file("own.key", &its_key));
        let tls = |certificate: &PathBuf, key: &PathBuf| Tls {
            ca: ca.clone(),
            certificate: certificate.clone(),
            key: key.clone(),
        };
        tls(&certificate, &key).check().unwrap();
        let told = |tls: Tls| {
            let error = tls.check().unwrap_err();
            let lasts = matches!(error, ClusterError::Certificate(_));
            (error.to_string().replace(&format!("{}/", folder.path().display()), ""), lasts)
        };
        let with = |(certificate, key): (String, String)| tls(&file("its.pem", &certificate), &file("its.key", &key));
        let lasts = |told: &str| (told.to_owned(), true);
        let passes = |told: &str| (told.to_owned(), false);
        let (_, others) = authority.certify(2000, 4000);
        assert_eq!(told(tls(&certificate, &file("b.key", &others))), lasts("b.key: it is not the key of own.pem"));
        assert_eq!(told(with(stranger.certify(2000, 4000))), lasts("its.pem: ca.pem has not signed it"));
        assert_eq!(told(with(authority.certify(2000, 2001))), passes("its.pem: it has expired"));
        assert_eq!(told(with(authority.certify(3000, 4000))), passes("its.pem: it is not valid yet"));
        let servers =
            |authority: &Authority| authority.certify_for(vec![ExtendedKeyUsagePurpose::ServerAuth], 2000, 4000);
        with(servers(&authority)).check().unwrap();
        assert_eq!(told(with(servers(&stranger))), lasts("its.pem: ca.pem has not signed it"));
        let (told_of, _) = told(with(authority.certify_for(vec![ExtendedKeyUsagePurpose::CodeSigning], 2000, 4000)));
        assert!(told_of.starts_with("its.pem: "), "{told_of}");
        assert_eq!(told(tls(&key, &key)), lasts("own.key: there is no certificate in it"));
        let (missing, why) = told(tls(&folder.path().join("none.pem"), &key));
        assert!(missing.starts_with("none.pem: ") && why, "{missing}");
        let (missing, why) = told(tls(&certificate, &certificate));
        assert!(missing.starts_with("own.pem: ") && why, "{missing}");
    }
}
