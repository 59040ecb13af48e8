//! Threads that help a caller with one task at a time.
//!
//! Between the products of a token there are microseconds, less than it takes to wake a thread. So helpers look for the next
//! task for a while before they sleep, and a caller waits only for those that have joined: one that wakes too late finds the
//! task closed.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a helper looks for the next task, and a caller for the end of its own, before it sleeps.
const PATIENCE: Duration = Duration::from_micros(200);
/// Looks between two offers of the processor to other threads.
const LOOKS: usize = 64;

/// What each thread runs.
type Task<'a> = &'a (dyn Fn() + Sync);

/// Helpers; dropped, they end.
pub(crate) struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held by the caller whose task it is.
    turn: Mutex<()>,
}

struct Shared {
    /// A [`State`].
    state: AtomicU64,
    /// The caller's `Task` while threads may join or have not finished it.
    task: AtomicPtr<()>,
    over: AtomicBool,
    /// What a helper's panic carried.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Helpers that sleep, or will have looked once more before they do; and a caller likewise.
    asleep: AtomicUsize,
    called: Sleep,
    caller_asleep: AtomicUsize,
    finished: Sleep,
}

/// Number of the task, helpers that may still join it, and helpers at work on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    task: u32,
    seats: u16,
    working: u16,
}

impl State {
    fn of(word: u64) -> Self {
        Self { task: (word >> 32) as u32, seats: (word >> 16) as u16, working: word as u16 }
    }

    fn word(self) -> u64 {
        u64::from(self.task) << 32 | u64::from(self.seats) << 16 | u64::from(self.working)
    }
}

impl Team {
    /// `helpers` threads, all of which have begun.
    ///
    /// # Errors
    /// What the system says if a thread cannot be started.
    pub(crate) fn new(helpers: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            task: AtomicPtr::new(ptr::null_mut()),
            over: AtomicBool::new(false),
            panic: Mutex::new(None),
            asleep: AtomicUsize::new(0),
            called: Sleep::default(),
            caller_asleep: AtomicUsize::new(0),
            finished: Sleep::default(),
        });
        let mut team = Self { shared, helpers: Vec::new(), turn: Mutex::new(()) };
        let (begun, all) = std::sync::mpsc::channel();
        for i in 0..helpers {
            let (shared, begun) = (Arc::clone(&team.shared), begun.clone());
            let named = std::thread::Builder::new().name(format!("kernel-{}", i + 1));
            team.helpers.push(named.spawn(move || {
                // With the heap that it has: whoever asks now what memory is left counts it.
                drop(std::hint::black_box(vec![0u8; 64]));
                // Nobody waits any more if another thread could not be started.
                let _ = begun.send(());
                drop(begun);
                shared.help();
            })?);
        }
        all.iter().take(helpers).for_each(drop);
        Ok(team)
    }

    /// Runs `task` on this thread and on up to `most` helpers that come while this thread is at it, and returns when all of them
    /// are through. While the helpers are another caller's, and so in a task of a task, this thread runs it alone.
    ///
    /// # Panics
    /// If `task` does, on any thread.
    pub(crate) fn run(&self, most: usize, task: Task<'_>) {
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return task(),
        };
        let shared = &*self.shared;
        let open = Open::new(shared, most.min(self.helpers.len()), &task);
        task();
        drop(open);
        if let Some(panic) = locked(&shared.panic).take() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.called.wake();
        for helper in self.helpers.drain(..) {
            // Panics of tasks are caught, and a helper does nothing else that could.
            let _ = helper.join();
        }
    }
}

/// A task that helpers may join; dropped, none may any more and none is at it.
struct Open<'a>(&'a Shared);

impl<'a> Open<'a> {
    /// `task` must outlive the result: it may be dropped but not forgotten.
    fn new(shared: &'a Shared, seats: usize, task: &Task<'_>) -> Self {
        // A panic that a caller did not get because its own came first.
        locked(&shared.panic).take();
        shared.task.store(ptr::from_ref(task).cast_mut().cast(), Ordering::Relaxed);
        let before = State::of(shared.state.load(Ordering::Relaxed));
        let seats = seats.min(usize::from(u16::MAX)) as u16;
        let now = State { task: before.task.wrapping_add(1), seats, working: 0 };
        // With this a helper that joins sees the task. A helper that misses it has said before that it sleeps.
        shared.state.store(now.word(), Ordering::SeqCst);
        if shared.asleep.load(Ordering::SeqCst) > 0 {
            shared.called.wake();
        }
        Self(shared)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        let seats = State { task: 0, seats: u16::MAX, working: 0 }.word();
        shared.state.fetch_and(!seats, Ordering::SeqCst);
        // What helpers have written is seen from here on.
        let through = || State::of(shared.state.load(Ordering::SeqCst)).working == 0;
        patiently(&shared.finished, &shared.caller_asleep, through);
        shared.task.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

impl Shared {
    /// The life of a helper.
    fn help(&self) {
        let mut last = 0;
        loop {
            patiently(&self.called, &self.asleep, || {
                let State { task, seats, .. } = State::of(self.state.load(Ordering::SeqCst));
                task != last && seats > 0 || self.over.load(Ordering::SeqCst)
            });
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            if let Some(number) = self.join(last) {
                last = number;
                self.work();
            }
        }
    }

    /// Takes a seat at a task that is not `last`, if there is one: its number.
    fn join(&self, last: u32) -> Option<u32> {
        let seated = |word| {
            let state @ State { task, seats, working } = State::of(word);
            let free = task != last && seats > 0;
            free.then(|| State { seats: seats - 1, working: working + 1, ..state }.word())
        };
        let before = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, seated);
        before.ok().map(|word| State::of(word).task)
    }

    /// Runs the task that was joined.
    fn work(&self) {
        let task = self.task.load(Ordering::Relaxed).cast::<Task<'_>>();
        // SAFETY: this thread has joined the task, so its caller, who stored the address before the state, stays inside
        // `Team::run`, where the task lives, until `working` is counted down below.
        let task = unsafe { *task };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(task)) {
            locked(&self.panic).get_or_insert(panic);
        }
        let before = State::of(self.state.fetch_sub(1, Ordering::SeqCst));
        if before.working == 1 && before.seats == 0 && self.caller_asleep.load(Ordering::SeqCst) > 0 {
            self.finished.wake();
        }
    }
}

/// Where threads sleep.
#[derive(Default)]
struct Sleep {
    lock: Mutex<()>,
    woken: Condvar,
}

impl Sleep {
    /// Wakes all.
    fn wake(&self) {
        // Who has looked in vain has let go of the lock to sleep.
        drop(locked(&self.lock));
        self.woken.notify_all();
    }
}

/// Waits until `done`, first looking again and again, then asleep; `asleep` counts those who are.
fn patiently(sleep: &Sleep, asleep: &AtomicUsize, done: impl Fn() -> bool) {
    let begun = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if done() {
                return;
            }
            std::hint::spin_loop();
        }
        if begun.elapsed() >= PATIENCE {
            break;
        }
        std::thread::yield_now();
    }
    let guard = locked(&sleep.lock);
    asleep.fetch_add(1, Ordering::SeqCst);
    drop(sleep.woken.wait_while(guard, |()| !done()).unwrap_or_else(PoisonError::into_inner));
    asleep.fetch_sub(1, Ordering::SeqCst);
}

/// Nothing is left half-done under these locks.
fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_a_word() {
        for state in [
            State { task: 0, seats: 0, working: 0 },
            State { task: u32::MAX, seats: 1, working: u16::MAX },
            State { task: 3, seats: u16::MAX, working: 2 },
        ] {
            assert_eq!(State::of(state.word()), state);
        }
    }

    #[test]
    fn helpers_take_part_and_are_waited_for() {
        let team = Team::new(3).unwrap();
        let (here, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // All four must be at it at once to go on.
        let task = || {
            here.fetch_add(1, Ordering::SeqCst);
            while here.load(Ordering::SeqCst) < 4 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(2));
            most.fetch_add(1, Ordering::SeqCst);
        };
        team.run(3, &task);
        assert_eq!(most.load(Ordering::SeqCst), 4);
    }

    #[test]
    fn no_more_helpers_come_than_are_wanted() {
        let team = Team::new(3).unwrap();
        for most in [0, 1, 2] {
            let ran = AtomicUsize::new(0);
            for _ in 0..200 {
                ran.store(0, Ordering::SeqCst);
                team.run(most, &|| {
                    ran.fetch_add(1, Ordering::SeqCst);
                    std::thread::yield_now();
                });
                assert!(ran.load(Ordering::SeqCst) <= most + 1);
            }
        }
    }

    #[test]
    fn tasks_after_pauses_of_any_length_are_done() {
        let team = Team::new(2).unwrap();
        for pause in [0, 50, 190, 200, 210, 1000].into_iter().cycle().take(300) {
            std::thread::sleep(Duration::from_micros(pause));
            let next = AtomicUsize::new(0);
            let done = AtomicUsize::new(0);
            team.run(2, &|| {
                while next.fetch_add(1, Ordering::Relaxed) < 20 {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert_eq!(done.into_inner(), 20);
        }
    }

    #[test]
    fn a_panic_of_a_helper_or_of_the_caller_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new(1).unwrap();
        let caller = std::thread::current().id();
        for of_helper in [true, false, true] {
            let here = AtomicUsize::new(0);
            let task = || {
                here.fetch_add(1, Ordering::SeqCst);
                while here.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                assert!((std::thread::current().id() == caller) == of_helper, "on purpose");
            };
            assert!(catch_unwind(AssertUnwindSafe(|| team.run(1, &task))).is_err());
            assert_eq!(here.load(Ordering::SeqCst), 2);
            team.run(1, &|| {});
        }
    }

    #[test]
    fn a_task_in_a_task_and_a_second_caller_run_alone() {
        let team = Team::new(1).unwrap();
        let ran = AtomicUsize::new(0);
        team.run(0, &|| {
            team.run(1, &|| {
                ran.fetch_add(1, Ordering::SeqCst);
            });
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    team.run(1, &|| {
                        ran.fetch_add(1, Ordering::SeqCst);
                    });
                });
            });
        });
        assert_eq!(ran.into_inner(), 2);
    }

    #[test]
    fn callers_from_many_threads_get_all_their_units_done() {
        let team = Team::new(2).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for units in 0..200 {
                        let (next, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
                        team.run(2, &|| {
                            loop {
                                let unit = next.fetch_add(1, Ordering::Relaxed);
                                if unit >= units {
                                    break;
                                }
                                sum.fetch_add(unit + 1, Ordering::Relaxed);
                            }
                        });
                        assert_eq!(sum.into_inner(), units * (units + 1) / 2);
                    }
                });
            }
        });
    }
}
