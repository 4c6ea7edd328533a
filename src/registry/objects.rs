//! The object store of the bus, for fetching `obj://bucket/key`.

use crate::manifest::fetch::{FetchCause, ObjectReader};
use crate::transport::Bus;

/// The buckets of a connection. Causes of errors are those of `transport`.
pub struct BusObjects<'a>(pub &'a Bus);

impl ObjectReader for BusObjects<'_> {
    async fn object(&self, bucket: &str, key: &str, max: u64) -> Result<Vec<u8>, FetchCause> {
        Ok(self.0.object_get(bucket, key, max).await?)
    }
}
