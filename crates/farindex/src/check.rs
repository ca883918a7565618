//! Checking a whole pool.

use crate::Error;
use crate::any::AnyIndex;
use farindex_fabric::OpKind;
use farindex_index::IndexAudit;
use farindex_pool::audit::{Audit, AuditReport};
use farindex_pool::{Session, catalog, clients};
use std::rc::Rc;

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Each index, with its name.
    pub indexes: Vec<(String, IndexAudit)>,
    /// The pool itself.
    pub pool: AuditReport,
}

impl CheckReport {
    /// Everything that is wrong, in words.
    pub fn problems(&self) -> impl Iterator<Item = String> + '_ {
        let of_indexes = self
            .indexes
            .iter()
            .flat_map(|(name, audit)| audit.problems.iter().map(move |problem| format!("index {name:?}: {problem}")));
        of_indexes.chain(self.pool.problems.iter().cloned())
    }
    /// Is all well?
    pub fn is_sound(&self) -> bool {
        self.problems().next().is_none()
    }
}

pub(crate) async fn check(session: &Rc<Session>) -> Result<CheckReport, Error> {
    let span = session.span(OpKind::Other);
    // What this session holds itself would look lost.
    session.flush().await?;
    let mine = session.client().slot();
    let alone = clients(session.pool(), &span).await?.iter().all(|client| client.slot == mine);
    let mut audit = Audit::default();
    let mut report = CheckReport::default();
    for info in catalog::list(session.pool(), &span).await? {
        if info.dropping {
            continue;
        }
        audit.reach(info.root, session.pool().nodes().len() as u64 * 8, "a list of roots");
        match AnyIndex::open_info(session, &info).await {
            Ok(index) => {
                let found = index.audit(&mut audit, alone).await;
                match found {
                    Err(farindex_index::IndexError::Dropped) => {}
                    found => report.indexes.push((info.name.clone(), found?)),
                }
            }
            Err(farindex_index::IndexError::Dropped) => {}
            Err(error) => {
                let audit = IndexAudit { problems: vec![error.to_string()], ..IndexAudit::default() };
                report.indexes.push((info.name.clone(), audit));
            }
        }
    }
    session.flush().await?;
    report.pool = audit.settle(session, &span).await?;
    Ok(report)
}
