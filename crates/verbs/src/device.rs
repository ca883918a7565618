//! RDMA devices: finding one, its address, its limits.
//!
//! Invariants: a device without hardware CAS and FAA is refused; what is missing is named together with the package or
//! the command that brings it.

use farindex_fabric::FabricError;
use sideway::ibverbs::address::{Gid, GidType};
use sideway::ibverbs::device::{DeviceInfo, DeviceList};
use sideway::ibverbs::device_context::{AtomicCapability, DeviceContext, LinkLayer, Mtu, PortState};
use sideway::ibverbs::protection_domain::ProtectionDomain;
use std::net::Ipv6Addr;
use std::sync::Arc;

/// READs and atomics that one queue pair has outstanding at most.
const MAX_OUTSTANDING: i32 = 16;

/// Which device, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Its name (`mlx5_0`, `rxe0`); the first one that has an active port if `None`.
    pub device: Option<String>,
    /// Its port, from 1.
    pub port: u8,
    /// Index of the GID that it is known by; `None` takes a routable RoCE v2 one.
    pub gid: Option<u8>,
    /// Local time-out of a request: `4.096 us * 2^timeout` (the device may wait up to four times as long).
    pub timeout: u8,
    /// How often a request is repeated before the connection counts as broken, 0 to 6. (7 is without end on Soft-RoCE:
    /// docs/bugs/042.)
    pub retries: u8,
    /// Which side keeps the fences: the device (`true`), or the client, which then posts what is fenced only when all
    /// before it has completed, and READs and atomics only when the WRITEs before them have. `None`: the client on
    /// Soft-RoCE, whose fences may wait for ever (docs/bugs/043) and whose answers to WRITEs may answer for more
    /// (docs/bugs/050), else the device.
    pub device_fences: Option<bool>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        DeviceOptions { device: None, port: 1, gid: None, timeout: 14, retries: 6, device_fences: None }
    }
}

impl DeviceOptions {
    /// From the variables `FARINDEX_VERBS_DEVICE` (a name), `FARINDEX_VERBS_PORT` and `FARINDEX_VERBS_GID` (numbers),
    /// and `FARINDEX_VERBS_FENCES` (`device` or `client`).
    pub fn from_environment() -> Result<Self, FabricError> {
        let text = |variable: &str| std::env::var(variable).ok().filter(|text| !text.is_empty());
        let number = |variable: &str| {
            let parse = |text: String| {
                text.parse::<u8>()
                    .map_err(|_| FabricError::Settings(format!("{variable}={text}: it is a number up to 255")))
            };
            text(variable).map(parse).transpose()
        };
        let device_fences = match text("FARINDEX_VERBS_FENCES").as_deref() {
            None => None,
            Some("device") => Some(true),
            Some("client") => Some(false),
            Some(other) => {
                let wrong = format!("FARINDEX_VERBS_FENCES={other}: it is `device` or `client`");
                return Err(FabricError::Settings(wrong));
            }
        };
        let defaults = DeviceOptions::default();
        Ok(DeviceOptions {
            device_fences,
            device: text("FARINDEX_VERBS_DEVICE"),
            port: number("FARINDEX_VERBS_PORT")?.unwrap_or(defaults.port),
            gid: number("FARINDEX_VERBS_GID")?,
            ..defaults
        })
    }
}

/// How a port is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortAddress {
    pub(crate) gid: [u8; 16],
    pub(crate) lid: u16,
    /// InfiniBand below: packets go by LID.
    pub(crate) infiniband: bool,
}

/// An open device.
pub struct Device {
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) context: Arc<DeviceContext>,
    pub(crate) options: DeviceOptions,
    pub(crate) address: PortAddress,
    pub(crate) gid_index: u8,
    /// Path MTU as its code, 1 (256 bytes) to 5 (4096).
    pub(crate) mtu: u8,
    /// READs and atomics outstanding: that it starts, and that it serves.
    pub(crate) starts: u8,
    pub(crate) serves: u8,
    pub(crate) max_requests: u32,
    pub(crate) max_completions: u32,
    name: String,
    atomics_with_cpu: bool,
    fences: bool,
}

/// What Soft-RoCE says of its vendor.
const SOFT_ROCE: u32 = 0xff_ffff;

fn missing(what: String) -> FabricError {
    FabricError::Settings(what)
}

fn names(list: &DeviceList) -> String {
    list.iter().map(|device| device.name()).collect::<Vec<_>>().join(", ")
}

/// All devices; there is at least one.
fn devices() -> Result<DeviceList, FabricError> {
    let list = DeviceList::new().map_err(|error| {
        missing(format!(
            "RDMA verbs: the library libibverbs.so.1 or the kernel's support for it is missing ({error}); on Debian or \
             Ubuntu: apt-get install libibverbs1 ibverbs-providers, and load the kernel's module ib_uverbs"
        ))
    })?;
    if list.is_empty() {
        return Err(missing(
            "RDMA verbs: this machine has no RDMA device; install the driver of its NIC and the package \
             ibverbs-providers, or make a software device: rdma link add rxe0 type rxe netdev eth0"
                .to_owned(),
        ));
    }
    Ok(list)
}

fn port_address(context: &DeviceContext, options: &DeviceOptions) -> Result<(PortAddress, u8, u8), FabricError> {
    let name = context.name();
    let port = context
        .query_port(options.port)
        .map_err(|error| missing(format!("RDMA verbs: device {name} has no usable port {}: {error}", options.port)))?;
    if !matches!(port.port_state(), PortState::Active | PortState::ActiveDefer) {
        return Err(missing(format!(
            "RDMA verbs: port {} of device {name} is not active: bring its network interface up, or its link",
            options.port
        )));
    }
    let infiniband = matches!(port.link_layer(), LinkLayer::InfiniBand);
    let table = context
        .query_gid_table()
        .map_err(|error| missing(format!("RDMA verbs: the GIDs of device {name} cannot be read: {error}")))?;
    let candidates = table.iter().filter(|entry| entry.port_num() == u32::from(options.port));
    let best = match options.gid {
        Some(index) => candidates.into_iter().find(|entry| entry.gid_index() == u32::from(index)),
        // RoCE v2 is routed, v1 is not; a link-local address reaches no further than the next switch.
        None => candidates.max_by_key(|entry| {
            let v2 = matches!(entry.gid_type(), GidType::RoceV2);
            (v2, !entry.gid().is_unicast_link_local(), std::cmp::Reverse(entry.gid_index()))
        }),
    };
    let entry = best.ok_or_else(|| {
        missing(format!("RDMA verbs: device {name} has no GID to be reached by: give its network interface an address"))
    })?;
    let index = u8::try_from(entry.gid_index())
        .map_err(|_| missing(format!("RDMA verbs: GID {} of device {name} is out of range", entry.gid_index())))?;
    let gid = Ipv6Addr::from(entry.gid()).octets();
    Ok((PortAddress { gid, lid: port.lid(), infiniband }, index, mtu_code(port.active_mtu())))
}

fn mtu_code(mtu: Mtu) -> u8 {
    match mtu {
        Mtu::Mtu256 => 1,
        Mtu::Mtu512 => 2,
        Mtu::Mtu1024 => 3,
        Mtu::Mtu2048 => 4,
        Mtu::Mtu4096 => 5,
    }
}

/// The MTU that both sides manage.
pub(crate) fn mtu_of(ours: u8, theirs: u8) -> Mtu {
    match ours.min(theirs) {
        0 | 1 => Mtu::Mtu256,
        2 => Mtu::Mtu512,
        3 => Mtu::Mtu1024,
        4 => Mtu::Mtu2048,
        _ => Mtu::Mtu4096,
    }
}

pub(crate) fn gid_of(bytes: [u8; 16]) -> Gid {
    Gid::from(Ipv6Addr::from(bytes))
}

impl Device {
    /// Opens a device.
    pub fn open(options: &DeviceOptions) -> Result<Arc<Self>, FabricError> {
        let list = devices()?;
        let mut failure = None;
        for device in list.iter() {
            if options.device.as_ref().is_some_and(|name| *name != device.name()) {
                continue;
            }
            let opened = device.open().map_err(|error| {
                missing(format!(
                    "RDMA verbs: device {} cannot be opened ({error}): may this user write to /dev/infiniband/uverbs*?",
                    device.name()
                ))
            });
            match opened.and_then(|context| Self::set_up(context, options)) {
                Ok(device) => return Ok(Arc::new(device)),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| {
            let wanted = options.device.as_deref().unwrap_or_default();
            missing(format!("RDMA verbs: there is no device {wanted:?} here; there are: {}", names(&list)))
        }))
    }

    fn set_up(context: Arc<DeviceContext>, options: &DeviceOptions) -> Result<Self, FabricError> {
        let name = context.name();
        let attributes = context
            .query_device()
            .map_err(|error| missing(format!("RDMA verbs: device {name} does not say what it can do: {error}")))?;
        let atomics = attributes.atomic_capability();
        if matches!(atomics, AtomicCapability::None) {
            return Err(missing(format!(
                "RDMA verbs: device {name} has no atomics (CAS, FAA); take another device, or the fabric ucx"
            )));
        }
        let (address, gid_index, mtu) = port_address(&context, options)?;
        let domain = context
            .alloc_pd()
            .map_err(|error| missing(format!("RDMA verbs: device {name} gives no protection domain: {error}")))?;
        let few = |limit: i32| limit.clamp(1, MAX_OUTSTANDING) as u8;
        Ok(Device {
            domain,
            options: options.clone(),
            address,
            gid_index,
            mtu,
            starts: few(attributes.max_qp_init_rd_atom()),
            serves: few(attributes.max_qp_rd_atom()),
            max_requests: attributes.max_qp_wr().max(1) as u32,
            max_completions: attributes.max_cqe().max(1) as u32,
            name,
            atomics_with_cpu: matches!(atomics, AtomicCapability::Global),
            fences: options.device_fences.unwrap_or(attributes.vendor_id() != SOFT_ROCE),
            context,
        })
    }

    /// Does it keep the fences itself?
    pub(crate) fn keeps_fences(&self) -> bool {
        self.fences
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Are its atomics atomic against this machine's own CPUs too? (`IBV_ATOMIC_GLOB`; most NICs: no.)
    pub fn atomics_with_cpu(&self) -> bool {
        self.atomics_with_cpu
    }
}
