//! What a job asks of Slurm at one site: portable amounts and the options of `launcher_spec`, made one.

use super::View;
use crate::error::Result;
use crate::launcher::{SLURM_KEYS, SlurmSandbox};
use crate::value::{At, Data, Int, Value};
use polder_words::Mode;

/// The resolved request.
#[derive(Debug, Clone, PartialEq)]
pub struct SlurmResources {
    /// Nodes, at least 1.
    pub nodes: Int,
    /// GPUs of each node.
    pub gpus_per_node: Option<Int>,
    /// CPUs of each node.
    pub cpus_per_node: Option<Int>,
    /// Memory of each node, in MiB.
    pub mem_per_node: Option<Int>,
    /// Time limit, as Slurm writes it.
    pub time_limit: Option<String>,
    /// How long it may wait in the queue, in seconds.
    pub pending_timeout: f64,
}

impl SlurmResources {
    /// As the contract prints it.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let int = |int: &Option<Int>| Value::from(int.clone().map(|int| Value::from(Data::Int(int))));
        Value::map([
            ("cpus_per_node", int(&self.cpus_per_node)),
            ("gpus_per_node", int(&self.gpus_per_node)),
            ("mem_per_node", int(&self.mem_per_node)),
            ("nodes", Data::Int(self.nodes.clone()).into()),
            ("pending_timeout", Value::from(self.pending_timeout)),
            ("time_limit", Value::from(self.time_limit.clone())),
        ])
    }
}

/// Resolves what a job asks of Slurm. `pending_timeout` is the site's, which a job may only shorten.
///
/// # Errors
/// When an option is unknown or not allowed, or amounts contradict each other.
pub fn slurm_resources(
    view: &View<'_>,
    site: &str,
    sandbox: SlurmSandbox,
    pending_timeout: f64,
) -> Result<SlurmResources> {
    let options: Value = Data::Map(view.launcher(site, Mode::Slurm)?).into();
    let path = format!("launcher_spec.{site}.slurm");
    let at = At::under(view.file, &path, &options);
    let fields = at.fields(&SLURM_KEYS)?;
    let positive = |key: &str| fields.given(key).map(|at| at.int(1).cloned()).transpose();

    let nodes = match fields.get("nodes") {
        Some(nodes) => nodes.int(1)?.clone(),
        None => Int::from(1i64),
    };
    let many = nodes.at_least(2);
    if many && sandbox.is_container() && fields.given("additional_node_command").is_none() {
        return Err(at.refuse_below(
            "additional_node_command",
            "",
            "is missing: several nodes of a container need a command for those beside the first",
            "a command line",
        ));
    }
    let portable = view.portable(site)?;
    let mut gpus_per_node = positive("gpus_per_node")?;
    let total = portable.gpus;
    match (&gpus_per_node, &total) {
        (Some(each), Some(total)) if nodes.times(each) != *total => {
            return Err(at.refuse_below(
                "gpus_per_node",
                &format!("{nodes} nodes of {each} GPUs"),
                &format!("does not come to the num_of_gpus of resource_spec, {total}"),
                "nodes * gpus_per_node equal to num_of_gpus",
            ));
        }
        (None, Some(total)) if !total.is_zero() => {
            if many {
                return Err(at.refuse_below(
                    "gpus_per_node",
                    "",
                    "is missing: several nodes with GPUs",
                    "how many of the GPUs each node has",
                ));
            }
            gpus_per_node = Some(total.clone());
        }
        _ => {}
    }
    let cpus_per_node = positive("cpus_per_node")?;
    let mem_per_node = positive("mem_per_node")?;
    let time_limit = match fields.given("time") {
        Some(time) => Some(time.clean_text()?.to_owned()),
        None => None,
    };
    let pending_timeout = match fields.get("pending_timeout") {
        None => pending_timeout,
        Some(own) => {
            let seconds = own.number()?;
            if seconds <= 0.0 {
                return Err(own.refuse("is no time at all", "a number of seconds above 0"));
            }
            if seconds > pending_timeout {
                let allowed = format!("at most {pending_timeout} seconds");
                return Err(own.refuse("is longer than the site allows", &allowed));
            }
            seconds
        }
    };
    Ok(SlurmResources {
        nodes,
        gpus_per_node,
        // A native amount beside a portable one was refused at submission; the portable one is what admission saw.
        cpus_per_node: portable.cpus.or(cpus_per_node),
        mem_per_node: portable.memory.map(|memory| memory.mib().clone()).or(mem_per_node),
        time_limit,
        pending_timeout,
    })
}
