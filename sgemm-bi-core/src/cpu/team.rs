//! Who computes: a team of threads that share a call's tasks, the caller among them.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::ThreadPool;

use super::float_env::with_default_float_env;

/// The threads of a call: the caller, and threads of a pool that join it as they wake.
///
/// The caller begins at once and takes every task that nobody else takes, so a call never waits
/// for a thread that a busy pool cannot spare before its own work is done.
#[derive(Clone, Copy)]
pub(super) struct Team<'a> {
    threads: usize,
    /// A pool of the engine's own, or else the global one.
    pool: Option<&'a ThreadPool>,
}

/// Tickets of a call's tasks, numbered through all its phases.
#[derive(Default)]
struct Tickets {
    taken: AtomicUsize,
    done: AtomicUsize,
}

/// A thread's way through the phases of a call.
pub(super) struct Member<'a> {
    tickets: &'a Tickets,
    /// The ticket that this thread holds.
    ticket: usize,
    /// Tasks of the phases up to now.
    tasks: usize,
}

impl<'a> Team<'a> {
    /// The calling thread.
    pub const ALONE: Team<'static> = Team {
        threads: 1,
        pool: None,
    };

    /// As many threads as the pool has.
    pub fn of(pool: Option<&'a ThreadPool>) -> Self {
        let threads = match pool {
            Some(pool) => pool.current_num_threads(),
            None => rayon::current_num_threads(),
        };
        Team { threads, pool }
    }

    /// Number of threads.
    pub fn threads(self) -> usize {
        self.threads
    }

    /// Calls `task` with every index below `tasks`, in any order.
    pub fn for_each(self, tasks: usize, task: impl Fn(usize) + Sync) {
        let team = Team {
            threads: self.threads.min(tasks),
            ..self
        };
        team.run(|member| member.phase(tasks, &task));
    }

    /// Runs `work` on every thread of the team. All must go through the same phases.
    pub fn run(self, work: impl Fn(&mut Member<'_>) + Sync) {
        let tickets = Tickets::default();
        let member = || {
            let ticket = tickets.taken.fetch_add(1, Ordering::Relaxed);
            work(&mut Member {
                tickets: &tickets,
                ticket,
                tasks: 0,
            });
        };
        if self.threads <= 1 {
            return member();
        }
        let others = self.threads - 1;
        match self.pool {
            Some(pool) => pool.in_place_scope(|scope| share(scope, others, &member)),
            None => rayon::in_place_scope(|scope| share(scope, others, &member)),
        }
    }
}

/// Runs `member` on the calling thread and on `others` of the pool's.
fn share<'scope>(scope: &rayon::Scope<'scope>, others: usize, member: &'scope (impl Fn() + Sync)) {
    for _ in 0..others {
        scope.spawn(move |_| member());
    }
    member();
}

impl Member<'_> {
    /// Does this thread's share of `tasks` tasks, each with its index, after every task of the
    /// phases before is done, in the floating-point environment of the contract: for each task
    /// anew, since a task that waits for others may run a stranger's job meanwhile.
    pub fn phase(&mut self, tasks: usize, task: impl Fn(usize)) {
        let first = self.tasks;
        self.tasks += tasks;
        if self.ticket >= self.tasks {
            return;
        }
        self.tickets.wait_for(first);
        while self.ticket < self.tasks {
            let done = Done(&self.tickets.done);
            with_default_float_env(|| task(self.ticket - first));
            drop(done);
            self.ticket = self.tickets.taken.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Tickets {
    /// Waits until `count` tasks are done, and sees what they wrote. Running threads have taken
    /// them all, so this ends.
    fn wait_for(&self, count: usize) {
        const SPINS: usize = 1 << 10;
        let mut spins = 0;
        while self.done.load(Ordering::Acquire) < count {
            spins += 1;
            if spins % SPINS == 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// Counts a task when dropped, so that a panic leaves no thread waiting.
struct Done<'a>(&'a AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}
