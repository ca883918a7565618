//! What a READ costs (sections 3.1, 3.2 and 3.5).

/// The parameters of a network that the model needs.
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

    /// Makes a network from measurements; `None` unless all of them are positive and finite.
    pub fn measured(read_ns: f64, reads_per_s: f64, bytes_per_s: f64) -> Option<Self> {
        let sound = [read_ns, reads_per_s, bytes_per_s].iter().all(|value| value.is_finite() && *value > 0.0);
        sound.then_some(Network { read_ns, reads_per_s, bytes_per_s, header: Network::CONNECTX5_EDR.header })
    }

    /// Returns `T(R) = c + alpha R w` in nanoseconds: the cost of one READ of `slots` slots of `width` bytes (formula
    /// 3).
    pub fn read_cost(&self, slots: u64, width: u64) -> f64 {
        self.read_ns + 1e9 / self.bytes_per_s * slots as f64 * width as f64
    }

    /// Returns the messages for each second: `rho_0 h / (h + w)`.
    pub fn message_rate(&self, width: u64) -> f64 {
        self.reads_per_s * self.header / (self.header + width as f64)
    }

    /// Returns the most slots that one READ may fetch: `R w rho <= l` (formula 2), at least 1. Rounds to the nearest,
    /// as the paper's tables do (22.7 slots of 8 bytes are 23).
    pub fn largest_read(&self, width: u64) -> u64 {
        let slots = self.bytes_per_s / (width as f64 * self.message_rate(width));
        (slots.round() as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables 1 and 3 have 23 slots of 8 bytes, 9 of 32 and 6 of 128.
    #[test]
    fn largest_read_is_that_of_the_papers_tables() {
        let reads = [8, 32, 128].map(|width| Network::CONNECTX5_EDR.largest_read(width));
        assert_eq!(reads, [23, 9, 6]);
    }

    #[test]
    fn measured_refuses_values_that_are_not_positive_and_finite() {
        assert!(Network::measured(1000.0, 1e6, 1e9).is_some());
        assert!(Network::measured(0.0, 1e6, 1e9).is_none() && Network::measured(1.0, f64::NAN, 1e9).is_none());
    }
}
