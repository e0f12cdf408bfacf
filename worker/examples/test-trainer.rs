//! The test trainer once more, where the worker's own tests find it beside the worker.

fn main() -> anyhow::Result<()> {
    polder_demo_trainer::misbehave::main()
}
