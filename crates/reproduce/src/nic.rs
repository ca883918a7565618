//! Another NIC than that of a paper's testbed, to see what bounds a figure.

use farindex_sim::Preset;

const PICOSECONDS: u64 = 1_000_000_000_000;

/// What differs from the NIC of the testbed. A run is bound by bytes, messages or atomics if more of them change its result.
#[derive(Debug, Clone, Copy, Default, clap::Args, serde::Serialize)]
pub(crate) struct Nic {
    /// For predicted figures: let each NIC carry so many gigabits a second, in place of the testbed's
    #[arg(long, value_name = "GBITS", value_parser = clap::value_parser!(u64).range(1..=8_000))]
    nic_gbits: Option<u64>,
    /// For predicted figures: let each NIC handle so many million messages a second, in place of the testbed's
    #[arg(long, value_name = "MILLIONS", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    nic_messages: Option<u64>,
    /// For predicted figures: let each NIC carry out so many million atomics a second, in place of the testbed's
    #[arg(long, value_name = "MILLIONS", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    nic_atomics: Option<u64>,
}

impl Nic {
    /// The testbed with this NIC.
    pub(crate) fn apply(self, preset: Preset) -> Preset {
        let byte_ps = self.nic_gbits.map_or(preset.byte_ps, |gbits| PICOSECONDS * 8 / (gbits * 1_000_000_000));
        let each = |millions: u64| PICOSECONDS / (millions * 1_000_000);
        let message_ps = self.nic_messages.map_or(preset.message_ps, each);
        let atomic_ps = self.nic_atomics.map_or(preset.atomic_ps, each);
        Preset { byte_ps, message_ps, atomic_ps, ..preset }
    }
    /// A line that says what differs; empty if nothing does.
    pub(crate) fn line(self) -> String {
        let bits = self.nic_gbits.map(|gbits| format!("{gbits} Gbit/s"));
        let messages = self.nic_messages.map(|millions| format!("{millions} M messages/s"));
        let atomics = self.nic_atomics.map(|millions| format!("{millions} M atomics/s"));
        match bits.into_iter().chain(messages).chain(atomics).collect::<Vec<_>>().join(", ") {
            differs if differs.is_empty() => differs,
            differs => format!("NIC: {differs}, in place of the testbed's\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_given_differs() {
        let preset = Preset::chime();
        assert_eq!(Nic::default().apply(preset.clone()), preset);
        assert_eq!(Nic::default().line(), "");
        let nic = Nic { nic_gbits: Some(400), ..Nic::default() };
        assert_eq!(nic.apply(preset.clone()), Preset { byte_ps: 20, ..preset.clone() });
        let nic = Nic { nic_messages: Some(200), nic_atomics: Some(100), ..Nic::default() };
        assert_eq!(nic.apply(preset.clone()), Preset { message_ps: 5_000, atomic_ps: 10_000, ..preset });
        assert_eq!(nic.line(), "NIC: 200 M messages/s, 100 M atomics/s, in place of the testbed's\n");
    }
}
