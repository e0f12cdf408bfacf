//! What each command does. One file a group, named like the group of its arguments.

mod check;
mod demo;
mod download;
mod follow;
mod jobs;
mod logs;
mod plan;
pub(crate) mod provision;
mod session;
mod simulate;
mod sites;
pub(crate) mod submit;

use crate::args::{Cli, Command, CompletionsArgs};
use crate::output::{Ending, Out};
use clap::CommandFactory as _;

/// Does what was asked.
pub(crate) async fn run(command: Command, out: &mut Out) -> Result<(), Ending> {
    match command {
        Command::Login(args) => session::login(&args, out).await,
        Command::Logout(args) => session::logout(&args, out).await,
        Command::Jobs(args) => jobs::list(&args, out).await,
        Command::Show(args) => jobs::show(&args, out).await,
        Command::Watch(args) => jobs::watch(&args, out).await,
        Command::Logs(args) => logs::logs(&args, out).await,
        Command::Abort(args) => jobs::abort(&args, out).await,
        Command::Delete(args) => jobs::delete(&args, out).await,
        Command::Sites(args) => sites::sites(&args, out).await,
        Command::Study(args) => sites::study(args.command, out).await,
        Command::Submit(args) => submit::submit(&args, out).await,
        Command::Clone(args) => submit::clone(&args, out).await,
        Command::Download(args) => download::download(&args, out).await,
        Command::Provision(args) => provision::run(args, out),
        Command::Simulate(args) => simulate::simulate(&args, out).await,
        Command::Demo(args) => demo::demo(&args, out).await,
        Command::Plan(args) => plan::plan(&args, out),
        Command::Check(args) => check::check(&args.command, out),
        Command::Completions(args) => completions(&args, out),
    }
}

fn completions(args: &CompletionsArgs, out: &mut Out) -> Result<(), Ending> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "polder", &mut script);
    out.exact(&String::from_utf8_lossy(&script))
}
