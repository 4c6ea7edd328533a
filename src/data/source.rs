//! Sources of external data: a file, a URL, or a key-value bucket.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use url::Url;

use crate::diag::{Diagnostic, error_chain};
use crate::host::{Host, fs};
use crate::http::{self, HostPolicy, HttpError, HttpRequest, redact_url};
use crate::model::{BusValue, DiscoveryClient};
use crate::yaml::{MAX_BYTES, YamlDocument};

/// The longest duration of a fetch.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The source of a data document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// A YAML or JSON file.
    File(PathBuf),
    /// A URL of a web server, over https or http. The server gets the user and the password of the URL.
    Web(Url),
    /// The value under a key of a NATS key-value bucket: `kv://BUCKET/KEY`.
    Bucket {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
    },
}

impl FromStr for DataSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once("://") {
            None if text.is_empty() => Err("source is required".to_owned()),
            None => Ok(Self::File(PathBuf::from(text))),
            Some(("https" | "http", _)) => {
                let url = Url::parse(text).ok().filter(Url::has_host);
                url.map(Self::Web).ok_or_else(|| format!("\"{}\" is no URL", redact_url(text)))
            }
            Some(("kv", rest)) => match rest.split_once('/') {
                Some((bucket, key)) if !bucket.is_empty() && !key.is_empty() => {
                    Ok(Self::Bucket { bucket: bucket.to_owned(), key: key.to_owned() })
                }
                _ => Err(format!("\"{text}\" does not name a bucket and a key, as kv://bucket/key")),
            },
            Some((scheme, _)) => {
                Err(format!("unsupported data source \"{scheme}://\": use a file, https://host/path, or kv://bucket/key"))
            }
        }
    }
}

/// A document from a source.
#[derive(Debug, Clone)]
pub struct SourcedDocument {
    /// The document.
    pub document: YamlDocument,
    /// True for a value of a bucket without a signature.
    pub unsigned: bool,
}

/// Reads the document of a source, within the limits of the host. `exchange` reads buckets.
///
/// # Errors
/// Fails when the source can't be read, or has no valid document. Errors hide the credentials in a URL.
pub fn read(source: &DataSource, host: &Host, exchange: Option<&dyn DiscoveryClient>) -> Result<SourcedDocument, Diagnostic> {
    let by_owner = |document: YamlDocument| SourcedDocument { document, unsigned: false };
    match source {
        DataSource::Bucket { bucket, key } => {
            let name = format!("kv://{bucket}/{key}");
            let exchange = exchange.ok_or_else(|| Diagnostic::new(format!("{name} can't be read: no NATS server is given")))?;
            let BusValue { value: text, signed } = exchange.value(bucket, key).map_err(Diagnostic::new)?;
            if text.trim().is_empty() {
                return Err(Diagnostic::new(format!("{name} is empty")));
            }
            Ok(SourcedDocument { document: YamlDocument::parse(&text, &name)?, unsigned: !signed })
        }
        DataSource::File(path) => {
            let text = fs::read_text(path, MAX_BYTES as u64).map_err(|error| Diagnostic::new(error_chain(&error)))?;
            YamlDocument::parse(&text, &path.display().to_string()).map(by_owner)
        }
        DataSource::Web(url) => {
            let name = redact_url(url.as_str());
            let text = fetch(url, host).map_err(|error| Diagnostic::new(error_chain(&error)))?;
            if text.trim().is_empty() {
                return Err(Diagnostic::new(format!("the document at {name} is empty")));
            }
            YamlDocument::parse(&text, &name).map(by_owner)
        }
    }
}

/// Fetches the text of a URL. The download stops at the first chunk beyond [`MAX_BYTES`], since the parser refuses the text.
fn fetch(url: &Url, host: &Host) -> Result<String, HttpError> {
    let policy = HostPolicy { hosts: host.limits().fetch_hosts.clone(), internal: host.limits().internal, loopback: false };
    let host = host.clone().with_timeout(TIMEOUT);
    let work = async {
        let mut answer = http::get(&HttpRequest::new(url.clone()), &policy).await?;
        let mut bytes = Vec::new();
        while bytes.len() <= MAX_BYTES
            && let Some(chunk) = answer.chunk().await?
        {
            bytes.extend_from_slice(chunk.as_ref());
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    http::block_on(work, &|| host.is_over())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::model::ResourceLimits;

    #[test]
    fn sources_are_parsed() {
        assert_eq!("a/b.yaml".parse(), Ok(DataSource::File("a/b.yaml".into())));
        assert_eq!("".parse::<DataSource>(), Err("source is required".to_owned()));
        assert!(matches!("https://h/x".parse(), Ok(DataSource::Web(_))));
        assert_eq!("https://u:p@/x".parse::<DataSource>(), Err("\"https:///x\" is no URL".to_owned()));
        assert_eq!("kv://conf/a/b.c".parse(), Ok(DataSource::Bucket { bucket: "conf".into(), key: "a/b.c".into() }));
        assert!("kv://conf".parse::<DataSource>().unwrap_err().contains("kv://bucket/key"));
        assert!("ftp://x/y".parse::<DataSource>().unwrap_err().contains("\"ftp://\""));
    }

    #[test]
    fn files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.yaml");
        let (source, host) = (DataSource::File(path.clone()), Host::system(None));
        assert!(read(&source, &host, None).unwrap_err().message.contains("could not read"));
        std::fs::write(&path, "data: {a: 1}").unwrap();
        assert_eq!(read(&source, &host, None).unwrap().document.value()["data"]["a"], 1);
    }

    #[test]
    fn a_bucket_needs_a_server() {
        let source: DataSource = "kv://conf/site".parse().unwrap();
        let error = read(&source, &Host::system(None), None).unwrap_err();
        assert!(error.message.contains("no NATS server is given"), "{error}");
    }

    #[test]
    fn a_url_is_fetched() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let bodies = [("200 OK", "data: {a: 1}"), ("200 OK", " \n"), ("404 Not Found", "")];
            bodies.map(|(status, body)| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = vec![0; 2048];
                let length = stream.read(&mut asked).unwrap();
                write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
                String::from_utf8_lossy(&asked[..length]).to_lowercase()
            })
        });
        let source: DataSource = format!("http://u:geheim@127.0.0.1:{port}/d.yaml").parse().unwrap();
        let host = Host::system(None);
        let document = read(&source, &host, None).unwrap().document;
        assert_eq!((&document.value()["data"]["a"], document.file()), (&1.into(), &*format!("http://127.0.0.1:{port}/d.yaml")));
        for message in ["is empty", "404"] {
            let error = read(&source, &host, None).unwrap_err().to_string();
            assert!(error.contains(message) && !error.contains("geheim"), "{error}");
        }
        assert!(server.join().unwrap()[0].contains("authorization: basic dtpnzwhlaw0="));
        let confined = host.with_limits(ResourceLimits { internal: false, ..ResourceLimits::default() });
        assert!(read(&source, &confined, None).unwrap_err().message.contains("internal to this machine"));
    }
}
