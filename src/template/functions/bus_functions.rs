//! Template functions that read the bus: bucket values and registrations.

use serde_json::Value;

use crate::model::registration::{Registration, RegistrationFilter, prometheus_file_sd};
use crate::model::{BusValue, DiscoveryClient, ReadAccess, TemplateRead};

/// The method that turns a list of registrations into a Prometheus service discovery file.
pub(in crate::template) const PROMETHEUS: &str = "PrometheusFileSD";

fn text_arguments<'a, const N: usize>(function: &str, names: &str, args: &'a [Value]) -> Result<[&'a str; N], String> {
    if args.len() != N {
        return Err(format!("{function} requires {N} string arguments: {names}"));
    }
    let mut texts = [""; N];
    for (at, (text, value)) in texts.iter_mut().zip(args).enumerate() {
        *text = value.as_str().ok_or_else(|| format!("{function} argument {} must be a string", at + 1))?;
    }
    Ok(texts)
}

/// Implements `kvGet(bucket, key)`.
pub(in crate::template) fn kv_get(
    exchange: &dyn DiscoveryClient,
    access: &dyn ReadAccess,
    args: &[Value],
) -> Result<BusValue<Value>, String> {
    let [bucket, key] = text_arguments("kvGet", "bucket, key", args)?;
    let answer = access.may_read(&TemplateRead::Value { bucket, key }).and_then(|()| exchange.value(bucket, key));
    let BusValue { value, signed } =
        answer.map_err(|why| format!("could not get key \"{key}\" from bucket \"{bucket}\": {why}"))?;
    Ok(BusValue { value: Value::String(value), signed })
}

/// Implements `registrations(cluster, protocol, service, address)`.
pub(in crate::template) fn registrations(
    exchange: &dyn DiscoveryClient,
    access: &dyn ReadAccess,
    args: &[Value],
) -> Result<BusValue<Value>, String> {
    let [cluster, protocol, service, address] = text_arguments("registrations", "cluster, protocol, service, ip", args)?;
    let allowed = || access.may_read(&TemplateRead::Registrations);
    let found = RegistrationFilter::parse(cluster, protocol, service, address)
        .and_then(|filter| allowed().and_then(|()| exchange.registrations(&filter)));
    let BusValue { value, signed } = found.map_err(|why| format!("could not query registrations: {why}"))?;
    Ok(BusValue { value: value.iter().map(to_json).collect(), signed })
}

fn to_json(entry: &Registration) -> Value {
    serde_json::to_value(entry).unwrap_or_default()
}

/// The fields of a registration: the names in templates of the Go system, and those in the JSON.
const FIELDS: &[(&str, &str)] = &[
    ("Cluster", "cluster"),
    ("Service", "service"),
    ("Protocol", "protocol"),
    ("Address", "address"),
    ("Port", "port"),
    ("Priority", "priority"),
    ("TTL", "ttl"),
    ("Annotations", "annotations"),
];

/// Returns the JSON field for a name of the Go system.
///
/// Only for maps that are registrations; `has` tests the map for a key.
pub(in crate::template) fn go_field(name: &str, has: impl Fn(&str) -> bool) -> Option<&'static str> {
    let (_, field) = FIELDS.iter().find(|(go, _)| *go == name)?;
    is_registration(has).then_some(*field)
}

/// True for a map with the fields that every registration has.
pub(in crate::template) fn is_registration(has: impl Fn(&str) -> bool) -> bool {
    ["cluster", "service", "protocol", "address"].into_iter().all(has)
}

/// Writes a list of registrations as a Prometheus service discovery file.
pub(in crate::template) fn prometheus_targets(args: &[Value]) -> Result<Value, String> {
    let wrong = || format!("{PROMETHEUS} is for what registrations() gives");
    let [Value::Array(list)] = args else { return Err(wrong()) };
    let entries = list.iter().map(|item| Registration::from_json(item.to_string().as_bytes()));
    let entries = entries.collect::<Result<Vec<_>, _>>().map_err(|_| wrong())?;
    Ok(Value::String(prometheus_file_sd(&entries)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::template::Scope;

    /// A bus with one value and two registrations.
    struct Known;

    impl DiscoveryClient for Known {
        fn value(&self, bucket: &str, key: &str) -> Result<BusValue<String>, String> {
            let known = (bucket, key) == ("conf", "motd");
            let value = known.then(|| "hello {{ Data.x }}".to_owned()).ok_or("kv://x does not exist")?;
            Ok(BusValue { value, signed: false })
        }

        fn registrations(&self, filter: &RegistrationFilter) -> Result<BusValue<Vec<Registration>>, String> {
            let entry = |service: &str, port: u16| {
                let value = json!({
                    "cluster": "prod", "service": service, "protocol": "prometheus", "address": "10.0.0.1", "port": port, "priority": 1
                });
                serde_json::from_value::<Registration>(value).unwrap()
            };
            let all = [entry("web", 80), entry("db", 5432)];
            let fits = |entry: &Registration| filter.service.as_ref().is_none_or(|service| *service == entry.service);
            Ok(BusValue { value: all.into_iter().filter(fits).collect(), signed: false })
        }

        fn register(&self, _: &Registration) -> Result<(), String> {
            Err("not here".into())
        }
    }

    fn scope() -> Scope {
        let environ = BTreeMap::new();
        Scope::new(Arc::new(|| json!({})), json!({}), environ).with_discovery(Arc::new(Known))
    }

    #[test]
    fn templates_see_the_bus() {
        let sd = prometheus_file_sd(&Known.registrations(&RegistrationFilter::default()).unwrap().value);
        for (text, expected) in [
            // What a value brings in is not evaluated.
            ("{{ kvGet('conf', 'motd') }}", "hello {{ Data.x }}"),
            ("{{ len(registrations('prod', '*', '', '*')) }}", "2"),
            ("{{ registrations('', '', 'db', '')[0].Port }}", "5432"),
            ("{{ registrations('', '', 'db', '')[0].address }}", "10.0.0.1"),
            ("{{ map(registrations('', '', 'db', ''), .Service + .Address) }}", "[db10.0.0.1]"),
            ("{{ keys(registrations('', '', 'db', '')[0]) | len() }}", "6"),
            (
                "{{ toJSON(registrations('', '', 'db', '')) }}",
                "[\n  {\n    \"cluster\": \"prod\",\n    \"service\": \"db\",\n    \"protocol\": \"prometheus\",\n    \"address\": \"10.0.0.1\",\n    \"port\": 5432,\n    \"priority\": 1\n  }\n]",
            ),
            ("{{ jet('[[ registrations(\"\", \"\", \"db\", \"\")[0].Port ]]') }}", "5432"),
            ("{{ registrations('*', '*', '*', '*').PrometheusFileSD() }}", sd.as_str()),
            ("{{ jet('[[ range registrations(\"\", \"\", \"\", \"\") ]][[ .Service ]] [[ end ]]') }}", "web db "),
            ("{{ jet('[[ registrations(\"\", \"\", \"\", \"\").PrometheusFileSD() ]]') }}", sd.as_str()),
        ] {
            assert_eq!(scope().resolve_text(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn failed_reads_name_the_reason() {
        for (text, why) in [
            ("{{ kvGet('conf') }}", "kvGet requires 2 string arguments: bucket, key"),
            ("{{ kvGet('conf', 1) }}", "kvGet argument 2 must be a string"),
            ("{{ kvGet('conf', 'nope') }}", "could not get key \"nope\" from bucket \"conf\": kv://x does not exist"),
            ("{{ registrations('a') }}", "registrations requires 4 string arguments: cluster, protocol, service, ip"),
            ("{{ registrations('a.b', '', '', '') }}", "\"a.b\" is not a valid name"),
            ("{{ [1].PrometheusFileSD() }}", "is for what registrations() gives"),
        ] {
            let error = scope().resolve_text(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let alone = Scope::new(Arc::new(|| json!({})), json!({}), BTreeMap::new());
        let error = alone.resolve_text("{{ kvGet('a', 'b') }}").unwrap_err().to_string();
        assert!(error.contains("no NATS server is given"), "{error}");
    }
}
