//! Counters of a gateway, which Prometheus can read.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

macro_rules! counters {
    ($($name:ident: $Kind:ty, $help:literal;)+) => {
        /// The counters.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(#[doc = $help] pub(crate) $name: $Kind,)+
        }

        impl Counters {
            /// All of them in Prometheus's text format.
            pub(crate) fn text(&self) -> String {
                let mut registry = Registry::with_prefix("farindex_gateway");
                $(registry.register(stringify!($name), $help, self.$name.clone());)+
                let mut text = String::new();
                // Writing to a string does not fail.
                let _ = encode(&mut text, &registry);
                text
            }
        }
    };
}

counters! {
    clients: Gauge, "Clients that are connected";
    accepted: Counter, "Clients that have connected so far";
    rejected: Counter, "Connections refused because there were too many";
    refused_passwords: Counter, "Wrong passwords";
    overrun: Counter, "Clients disconnected for their limits of memory or time";
    commands: Counter, "Commands carried out";
    errors: Counter, "Error replies";
    bytes_in: Counter, "Bytes received from clients";
    bytes_out: Counter, "Bytes sent to clients";
    retries: Counter, "Compare-and-swaps that another client won";
    expired: Counter, "Expired keys removed";
    swept: Counter, "Entries of sorted sets removed that no set has any more";
    sweeps: Counter, "Sweeps over all keys";
    evictions: Counter, "Times that this gateway lost its lease and registered with the pool again";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_shown_by_name() {
        let counters = Counters::default();
        counters.commands.inc_by(7);
        counters.clients.set(2);
        let text = counters.text();
        assert!(
            text.contains("farindex_gateway_commands_total 7\n") && text.contains("farindex_gateway_clients 2\n"),
            "{text}"
        );
    }
}
