//! Where a run took place.

use serde::{Deserialize, Serialize};

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Model of the CPU, as the system names it.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Operating system and its release.
    pub os: String,
}

impl Host {
    /// This machine.
    pub fn here() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let model = info.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == "model name");
        let cpu = model.map_or(std::env::consts::ARCH, |(_, model)| model.trim()).to_owned();
        let release = read("/proc/sys/kernel/osrelease");
        let os = format!("{} {}", std::env::consts::OS, release.trim()).trim_end().to_owned();
        Host { cpu, cores: std::thread::available_parallelism().map_or(1, usize::from), os }
    }
}
