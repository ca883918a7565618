//! What a READ costs.

/// A network, as the model sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// `c`: nanoseconds of a READ of no bytes.
    pub read_ns: f64,
    /// `rho_0`: READs of no bytes for each second.
    pub reads_per_s: f64,
    /// `l`: bytes for each second; its reciprocal is the signalling rate `alpha`.
    pub bytes_per_s: f64,
    /// `h`: bytes of a READ of no bytes on the wire.
    pub header: f64,
}

impl Network {
    /// The paper's Mellanox ConnectX-5 EDR InfiniBand (section 5.1).
    pub const CONNECTX5_EDR: Network =
        Network { read_ns: 1290.0, reads_per_s: 87.17e6, bytes_per_s: 12.5e9, header: 30.0 };

    /// A network from measurements; `None` unless all of them are positive and finite.
    pub fn measured(read_ns: f64, reads_per_s: f64, bytes_per_s: f64) -> Option<Self> {
        let sound = [read_ns, reads_per_s, bytes_per_s].iter().all(|value| value.is_finite() && *value > 0.0);
        sound.then_some(Network { read_ns, reads_per_s, bytes_per_s, header: Network::CONNECTX5_EDR.header })
    }

    /// `T(R) = c + alpha R w`, in nanoseconds: one READ of `slots` slots of `width` bytes (formula 3).
    pub fn read_cost(&self, slots: u64, width: u64) -> f64 {
        self.read_ns + 1e9 / self.bytes_per_s * slots as f64 * width as f64
    }

    /// Messages for each second, `rho_0 h / (h + w)`.
    pub fn message_rate(&self, width: u64) -> f64 {
        self.reads_per_s * self.header / (self.header + width as f64)
    }

    /// The most slots that one READ may fetch: `R w rho <= l` (formula 2). Rounded to the nearest, as the paper's tables
    /// have it (22.7 slots of 8 bytes are 23), and one at least.
    pub fn largest_read(&self, width: u64) -> u64 {
        let slots = self.bytes_per_s / (width as f64 * self.message_rate(width));
        (slots.round() as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables 1 and 3: 23 slots of 8 bytes, 9 of 32, 6 of 128.
    #[test]
    fn the_papers_limits() {
        let reads = [8, 32, 128].map(|width| Network::CONNECTX5_EDR.largest_read(width));
        assert_eq!(reads, [23, 9, 6]);
    }

    #[test]
    fn measurements_must_make_sense() {
        assert!(Network::measured(1000.0, 1e6, 1e9).is_some());
        assert!(Network::measured(0.0, 1e6, 1e9).is_none() && Network::measured(1.0, f64::NAN, 1e9).is_none());
    }
}
