; What XLA calls: one kernel, computed in parts by the threads of XLA's own pool.
;
; A kernel is two functions, given to XLA's arguments and results as arrays of `XLA_FFI_Buffer *`:
;   i64  @num_parts(ptr %args, ptr %rets, i64 %threads)   how many parts there are
;   void @part(ptr %args, ptr %rets, i64 %part, i64 %parts)
;
; Threads take parts until none is left. The caller waits for parts that others have begun, never
; for others to begin: all threads of the pool may be callers. Whoever comes late finds no part
; left; so what they share lives until the last one leaves. Where the pool takes no helper, the
; caller helps in its place, as in XLA's own header: the call does not fail.
;
; XLA's version and the places of its functions are read from the header of the installed jaxlib;
; `xla_ffi.py` checks the offsets below against it, before this is compiled.

@exhausted = private constant [67 x i8] c"axl-cpu: the host has no memory for what threads of a kernel share\00"

; next part, parts done, who still uses it, parts, arguments, results
%Shared = type { i64, i64, i64, i64, ptr, ptr }

declare ptr @malloc(i64)
declare void @free(ptr)

define private void @work(ptr %shared) {
entry:
  %done.at = getelementptr %Shared, ptr %shared, i32 0, i32 1
  %parts.at = getelementptr %Shared, ptr %shared, i32 0, i32 3
  %args.at = getelementptr %Shared, ptr %shared, i32 0, i32 4
  %rets.at = getelementptr %Shared, ptr %shared, i32 0, i32 5
  %parts = load i64, ptr %parts.at
  %args = load ptr, ptr %args.at
  %rets = load ptr, ptr %rets.at
  br label %next
next:
  %part = atomicrmw add ptr %shared, i64 1 monotonic
  %is.left = icmp slt i64 %part, %parts
  br i1 %is.left, label %compute, label %end
compute:
  call void @part(ptr %args, ptr %rets, i64 %part, i64 %parts)
  atomicrmw add ptr %done.at, i64 1 release
  br label %next
end:
  ret void
}

define private void @leave(ptr %shared) {
entry:
  %users.at = getelementptr %Shared, ptr %shared, i32 0, i32 2
  %users = atomicrmw sub ptr %users.at, i64 1 acq_rel
  %is.last = icmp eq i64 %users, 1
  br i1 %is.last, label %last, label %end
last:
  call void @free(ptr %shared)
  br label %end
end:
  ret void
}

define private void @help(ptr %shared) {
  call void @work(ptr %shared)
  call void @leave(ptr %shared)
  ret void
}

; Returns whether there is no error, and destroys it if there is one.
define private i1 @succeeded(ptr %api, ptr %error) {
entry:
  %given = alloca { i64, ptr, ptr }
  %is.none = icmp eq ptr %error, null
  br i1 %is.none, label %end, label %failed
failed:
  store { i64, ptr, ptr } { i64 24, ptr null, ptr null }, ptr %given
  %given.error = getelementptr i8, ptr %given, i64 16
  store ptr %error, ptr %given.error
  %destroy.at = getelementptr i8, ptr %api, i64 $DESTROY
  %destroy = load ptr, ptr %destroy.at
  call void %destroy(ptr %given)
  br label %end
end:
  ret i1 %is.none
}

; XLA_FFI_Error *(*)(XLA_FFI_CallFrame *)
define ptr @handler(ptr %frame) {
entry:
  %extension.at = getelementptr i8, ptr %frame, i64 8
  %extension = load ptr, ptr %extension.at
  %is.call = icmp eq ptr %extension, null
  br i1 %is.call, label %call, label %describe

describe:                                     ; XLA asks which version this was written for
  %metadata.at = getelementptr i8, ptr %extension, i64 24
  %metadata = load ptr, ptr %metadata.at
  %major.at = getelementptr i8, ptr %metadata, i64 24
  %minor.at = getelementptr i8, ptr %metadata, i64 28
  store i32 $MAJOR, ptr %major.at
  store i32 $MINOR, ptr %minor.at
  ret ptr null

call:
  %api.at = getelementptr i8, ptr %frame, i64 16
  %api = load ptr, ptr %api.at
  %context.at = getelementptr i8, ptr %frame, i64 24
  %context = load ptr, ptr %context.at
  %args.at = getelementptr i8, ptr %frame, i64 72
  %args = load ptr, ptr %args.at
  %rets.at = getelementptr i8, ptr %frame, i64 112
  %rets = load ptr, ptr %rets.at

  %threads.at = alloca i64
  store i64 1, ptr %threads.at
  %question = alloca { i64, ptr, ptr, ptr }
  store { i64, ptr, ptr, ptr } { i64 32, ptr null, ptr null, ptr null }, ptr %question
  %question.context = getelementptr i8, ptr %question, i64 16
  store ptr %context, ptr %question.context
  %question.answer = getelementptr i8, ptr %question, i64 24
  store ptr %threads.at, ptr %question.answer
  %count.at = getelementptr i8, ptr %api, i64 $THREADS
  %count = load ptr, ptr %count.at
  %count.error = call ptr %count(ptr %question)
  %is.counted = call i1 @succeeded(ptr %api, ptr %count.error)
  %counted = load i64, ptr %threads.at
  %threads = call i64 @llvm.smax.i64(i64 %counted, i64 1)

  %parts = call i64 @num_parts(ptr %args, ptr %rets, i64 %threads)
  %useful = call i64 @llvm.smin.i64(i64 %threads, i64 %parts)
  %users = call i64 @llvm.smax.i64(i64 %useful, i64 1)
  %shared = call ptr @malloc(i64 48)
  %is.exhausted = icmp eq ptr %shared, null
  br i1 %is.exhausted, label %give.up, label %share

give.up:                                      ; the error is XLA's, of the code RESOURCE_EXHAUSTED
  %reason = alloca { i64, ptr, ptr, i32 }
  store { i64, ptr, ptr, i32 } { i64 28, ptr null, ptr @exhausted, i32 8 }, ptr %reason
  %create.at = getelementptr i8, ptr %api, i64 $CREATE
  %create = load ptr, ptr %create.at
  %error = call ptr %create(ptr %reason)
  ret ptr %error

share:
  %done.at = getelementptr %Shared, ptr %shared, i32 0, i32 1
  %users.at = getelementptr %Shared, ptr %shared, i32 0, i32 2
  %parts.at = getelementptr %Shared, ptr %shared, i32 0, i32 3
  %shared.args = getelementptr %Shared, ptr %shared, i32 0, i32 4
  %shared.rets = getelementptr %Shared, ptr %shared, i32 0, i32 5
  store i64 0, ptr %shared
  store i64 0, ptr %done.at
  store i64 %users, ptr %users.at
  store i64 %parts, ptr %parts.at
  store ptr %args, ptr %shared.args
  store ptr %rets, ptr %shared.rets

  %job = alloca { i64, ptr, ptr, ptr, ptr }
  store { i64, ptr, ptr, ptr, ptr } { i64 40, ptr null, ptr null, ptr @help, ptr null }, ptr %job
  %job.context = getelementptr i8, ptr %job, i64 16
  store ptr %context, ptr %job.context
  %job.data = getelementptr i8, ptr %job, i64 32
  store ptr %shared, ptr %job.data
  %schedule.at = getelementptr i8, ptr %api, i64 $SCHEDULE
  %schedule = load ptr, ptr %schedule.at
  br label %spread

spread:
  %helper = phi i64 [ 1, %share ], [ %helper.after, %asked ]
  %is.more = icmp slt i64 %helper, %users
  br i1 %is.more, label %ask, label %own
ask:
  %schedule.error = call ptr %schedule(ptr %job)
  %is.scheduled = call i1 @succeeded(ptr %api, ptr %schedule.error)
  br i1 %is.scheduled, label %asked, label %replace
replace:
  call void @help(ptr %shared)
  br label %asked
asked:
  %helper.after = add i64 %helper, 1
  br label %spread

own:
  call void @work(ptr %shared)
  br label %wait
wait:
  %done = load atomic i64, ptr %done.at acquire, align 8
  %is.open = icmp slt i64 %done, %parts
  br i1 %is.open, label %pause, label %end
pause:
  call $PAUSE
  br label %wait
end:
  call void @leave(ptr %shared)
  ret ptr null
}
