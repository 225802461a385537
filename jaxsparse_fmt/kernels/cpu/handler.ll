; of handler.c, BLAKE2b eadba421ea9cfd2d4270156fabd76b66
%struct.XLA_FFI_ThreadPool_NumThreads_Args = type { i64, ptr, ptr, ptr }
%struct.XLA_FFI_ThreadPool_Schedule_Args = type { i64, ptr, ptr, ptr, ptr }
%struct.XLA_FFI_Error_Create_Args = type { i64, ptr, ptr, i32 }
%struct.XLA_FFI_Error_Destroy_Args = type { i64, ptr, ptr }
@jaxsparse_table = external global [0 x i64], align 8
@.str = private constant [215 x i8] c"a program that another process has compiled calls a native kernel that this process lacks; compile the program's function here once, by jax.jit(f).lower(...).compile(), or for all processes under use_backend(\22xla\22)\00", align 1
@.str.1 = private constant [166 x i8] c"the pointers of a sparse matrix lead beyond its entries, as after jax.tree.map over all its arrays; scale it by 2 * A, and give it other numbers by A.with_data(data)\00", align 1
@.str.2 = private constant [40 x i8] c"no memory for a call of a native kernel\00", align 1
define ptr @jaxsparse_native(ptr %frame) {
entry:
  %threads = alloca i64, align 8
  %done = alloca i64, align 8
  %asked = alloca %struct.XLA_FFI_ThreadPool_NumThreads_Args, align 8
  %args = alloca %struct.XLA_FFI_ThreadPool_Schedule_Args, align 8
  %call = tail call fastcc i32 @asks_version(ptr %frame)
  %tobool.not = icmp eq i32 %call, 0
  br i1 %tobool.not, label %lor.lhs.false, label %return
lor.lhs.false:
  %stage = getelementptr inbounds i8, ptr %frame, i64 32
  %0 = load i32, ptr %stage, align 8
  %cmp.not = icmp eq i32 %0, 3
  br i1 %cmp.not, label %if.end, label %return
if.end:
  %call1 = tail call fastcc ptr @sizes_of(ptr %frame)
  %1 = load i64, ptr %call1, align 8
  %arrayidx = getelementptr inbounds [0 x i64], ptr @jaxsparse_table, i64 0, i64 %1
  %2 = load i64, ptr %arrayidx, align 8
  %tobool2.not = icmp eq i64 %2, 0
  br i1 %tobool2.not, label %if.then3, label %if.end5
if.then3:
  %call4 = tail call fastcc ptr @refuse(ptr %frame, ptr @.str, i32 5)
  br label %return
if.end5:
  %most = getelementptr inbounds i8, ptr %call1, i64 56
  %3 = load i64, ptr %most, align 8
  %cmp6 = icmp sgt i64 %3, -1
  br i1 %cmp6, label %if.then7, label %if.end28
if.then7:
  %call8 = tail call fastcc ptr @operand(ptr %frame, i32 3)
  %n_ptr = getelementptr inbounds i8, ptr %call1, i64 88
  %4 = load i64, ptr %n_ptr, align 8
  %sub = add nsw i64 %4, -1
  %dtype = getelementptr inbounds i8, ptr %call8, i64 16
  %5 = load i32, ptr %dtype, align 8
  %cmp9 = icmp eq i32 %5, 5
  %data = getelementptr inbounds i8, ptr %call8, i64 24
  %6 = load ptr, ptr %data, align 8
  br i1 %cmp9, label %cond.true, label %cond.false
cond.true:
  %arrayidx12 = getelementptr inbounds i64, ptr %6, i64 %sub
  %7 = load i64, ptr %arrayidx12, align 8
  br label %cond.end
cond.false:
  %arrayidx14 = getelementptr inbounds i32, ptr %6, i64 %sub
  %8 = load i32, ptr %arrayidx14, align 4
  %conv15 = sext i32 %8 to i64
  br label %cond.end
cond.end:
  %cond = phi i64 [ %7, %cond.true ], [ %conv15, %cond.false ]
  %or.cond.not = icmp ugt i64 %cond, %3
  br i1 %or.cond.not, label %if.then22, label %cleanup
if.then22:
  %call23 = tail call fastcc ptr @refuse(ptr %frame, ptr @.str.1, i32 3)
  br label %cleanup
cleanup:
  %retval.0 = phi ptr [ %call23, %if.then22 ], [ undef, %cond.end ]
  br i1 %or.cond.not, label %return, label %if.end28
if.end28:
  %batch = getelementptr inbounds i8, ptr %call1, i64 8
  %9 = load i64, ptr %batch, align 8
  %pieces = getelementptr inbounds i8, ptr %call1, i64 16
  %10 = load i64, ptr %pieces, align 8
  %mul = mul nsw i64 %10, %9
  store i64 0, ptr %threads, align 8
  store i64 0, ptr %done, align 8
  %call29 = tail call fastcc ptr @result(ptr %frame)
  %data30 = getelementptr inbounds i8, ptr %call29, i64 24
  %11 = load ptr, ptr %data30, align 8
  %out_bytes = getelementptr inbounds i8, ptr %call1, i64 40
  %12 = load i64, ptr %out_bytes, align 8
  %mul32 = mul nsw i64 %12, %9
  %piece_bytes = getelementptr inbounds i8, ptr %call1, i64 48
  %13 = load i64, ptr %piece_bytes, align 8
  %mul33 = mul nsw i64 %13, %mul
  %add = add nsw i64 %mul33, %mul32
  tail call fastcc void @take_huge_pages(ptr %11, i64 %add)
  %cmp34 = icmp slt i64 %mul, 2
  br i1 %cmp34, label %if.then36, label %if.end40
if.then36:
  %tobool37.not = icmp eq i64 %mul, 0
  br i1 %tobool37.not, label %cleanup84, label %if.then38
if.then38:
  tail call fastcc void @compute(ptr %frame, i64 0)
  br label %cleanup84
if.end40:
  %call41 = tail call noalias dereferenceable_or_null(40) ptr @malloc(i64 40)
  %tobool42.not = icmp eq ptr %call41, null
  br i1 %tobool42.not, label %if.then43, label %if.end45
if.then43:
  %call44 = tail call fastcc ptr @refuse(ptr %frame, ptr @.str.2, i32 8)
  br label %cleanup84
if.end45:
  store i64 32, ptr %asked, align 8
  %extension_start = getelementptr inbounds i8, ptr %asked, i64 8
  store ptr null, ptr %extension_start, align 8
  %ctx = getelementptr inbounds i8, ptr %asked, i64 16
  %ctx46 = getelementptr inbounds i8, ptr %frame, i64 24
  %14 = load ptr, ptr %ctx46, align 8
  store ptr %14, ptr %ctx, align 8
  %num_threads = getelementptr inbounds i8, ptr %asked, i64 24
  store ptr %threads, ptr %num_threads, align 8
  %api = getelementptr inbounds i8, ptr %frame, i64 16
  %15 = load ptr, ptr %api, align 8
  %XLA_FFI_ThreadPool_NumThreads = getelementptr inbounds i8, ptr %15, i64 144
  %16 = load ptr, ptr %XLA_FFI_ThreadPool_NumThreads, align 8
  %call47 = call ptr %16(ptr %asked)
  %call48 = call fastcc i32 @fails(ptr %frame, ptr %call47)
  %17 = load i64, ptr %threads, align 8
  %sub49 = add nsw i64 %17, -1
  %sub50 = add nsw i64 %mul, -1
  %cond58 = call i64 @llvm.smin.i64(i64 %sub49, i64 %sub50)
  %add61 = add nsw i64 %cond58, 1
  store i64 0, ptr %call41, align 8
  %.compoundliteral.sroa.2.0..sroa_idx = getelementptr inbounds i8, ptr %call41, i64 8
  store ptr %done, ptr %.compoundliteral.sroa.2.0..sroa_idx, align 8
  %.compoundliteral.sroa.3.0..sroa_idx = getelementptr inbounds i8, ptr %call41, i64 16
  store i64 %mul, ptr %.compoundliteral.sroa.3.0..sroa_idx, align 8
  %.compoundliteral.sroa.4.0..sroa_idx = getelementptr inbounds i8, ptr %call41, i64 24
  store i64 %add61, ptr %.compoundliteral.sroa.4.0..sroa_idx, align 8
  %.compoundliteral.sroa.5.0..sroa_idx = getelementptr inbounds i8, ptr %call41, i64 32
  store ptr %frame, ptr %.compoundliteral.sroa.5.0..sroa_idx, align 8
  %cmp63128 = icmp sgt i64 %cond58, 0
  br i1 %cmp63128, label %for.body.lr.ph, label %for.end
for.body.lr.ph:
  %extension_start66 = getelementptr inbounds i8, ptr %args, i64 8
  %ctx67 = getelementptr inbounds i8, ptr %args, i64 16
  %task = getelementptr inbounds i8, ptr %args, i64 24
  %data69 = getelementptr inbounds i8, ptr %args, i64 32
  br label %for.body
for.body:
  %helpers.0129 = phi i64 [ %cond58, %for.body.lr.ph ], [ %dec, %if.end76 ]
  store i64 40, ptr %args, align 8
  store ptr null, ptr %extension_start66, align 8
  %18 = load ptr, ptr %ctx46, align 8
  store ptr %18, ptr %ctx67, align 8
  store ptr @work, ptr %task, align 8
  store ptr %call41, ptr %data69, align 8
  %19 = load ptr, ptr %api, align 8
  %XLA_FFI_ThreadPool_Schedule = getelementptr inbounds i8, ptr %19, i64 136
  %20 = load ptr, ptr %XLA_FFI_ThreadPool_Schedule, align 8
  %call71 = call ptr %20(ptr %args)
  %call72 = call fastcc i32 @fails(ptr %frame, ptr %call71)
  %tobool73.not = icmp eq i32 %call72, 0
  br i1 %tobool73.not, label %if.end76, label %if.then74
if.then74:
  %21 = atomicrmw sub ptr %.compoundliteral.sroa.4.0..sroa_idx, i64 1 seq_cst, align 8
  br label %if.end76
if.end76:
  %dec = add nsw i64 %helpers.0129, -1
  %cmp63 = icmp sgt i64 %helpers.0129, 1
  br i1 %cmp63, label %for.body, label %for.end
for.end:
  call void @work(ptr %call41)
  %22 = load atomic i64, ptr %done seq_cst, align 8
  %cmp78130 = icmp slt i64 %22, %mul
  br i1 %cmp78130, label %while.body, label %while.end
while.body:
  %call80 = call i32 @sched_yield()
  %23 = load atomic i64, ptr %done seq_cst, align 8
  %cmp78 = icmp slt i64 %23, %mul
  br i1 %cmp78, label %while.body, label %while.end
while.end:
  br label %cleanup84
cleanup84:
  %retval.2 = phi ptr [ null, %if.then38 ], [ null, %if.then36 ], [ null, %while.end ], [ %call44, %if.then43 ]
  br label %return
return:
  %retval.4 = phi ptr [ null, %lor.lhs.false ], [ null, %entry ], [ %retval.2, %cleanup84 ], [ %retval.0, %cleanup ], [ %call4, %if.then3 ]
  ret ptr %retval.4
}
define internal fastcc i32 @asks_version(ptr %frame) {
entry:
  %extension_start = getelementptr inbounds i8, ptr %frame, i64 8
  %0 = load ptr, ptr %extension_start, align 8
  %tobool.not = icmp eq ptr %0, null
  br i1 %tobool.not, label %cleanup, label %lor.lhs.false
lor.lhs.false:
  %type = getelementptr inbounds i8, ptr %0, i64 8
  %1 = load i32, ptr %type, align 8
  %cmp.not = icmp eq i32 %1, 1
  br i1 %cmp.not, label %if.end, label %cleanup
if.end:
  %metadata = getelementptr inbounds i8, ptr %0, i64 24
  %2 = load ptr, ptr %metadata, align 8
  %3 = load i64, ptr %frame, align 8
  %cmp1 = icmp ugt i64 %3, 167
  br i1 %cmp1, label %land.lhs.true, label %land.end
land.lhs.true:
  %api = getelementptr inbounds i8, ptr %frame, i64 16
  %4 = load ptr, ptr %api, align 8
  %tobool2.not = icmp eq ptr %4, null
  br i1 %tobool2.not, label %land.end, label %land.lhs.true3
land.lhs.true3:
  %5 = load i64, ptr %4, align 8
  %cmp6 = icmp ugt i64 %5, 151
  br i1 %cmp6, label %land.lhs.true7, label %land.end
land.lhs.true7:
  %args = getelementptr inbounds i8, ptr %frame, i64 40
  %6 = load i64, ptr %args, align 8
  %cmp9 = icmp eq i64 %6, 40
  br i1 %cmp9, label %land.lhs.true10, label %land.end
land.lhs.true10:
  %rets = getelementptr inbounds i8, ptr %frame, i64 80
  %7 = load i64, ptr %rets, align 8
  %cmp12 = icmp eq i64 %7, 40
  br i1 %cmp12, label %land.rhs, label %land.end
land.rhs:
  %attrs = getelementptr inbounds i8, ptr %frame, i64 120
  %8 = load i64, ptr %attrs, align 8
  %cmp14 = icmp eq i64 %8, 48
  %9 = select i1 %cmp14, i32 3, i32 0
  br label %land.end
land.end:
  %cond17 = phi i32 [ 0, %land.lhs.true10 ], [ 0, %land.lhs.true7 ], [ 0, %land.lhs.true3 ], [ 0, %land.lhs.true ], [ 0, %if.end ], [ %9, %land.rhs ]
  %major_version = getelementptr inbounds i8, ptr %2, i64 24
  store i32 0, ptr %major_version, align 8
  %minor_version = getelementptr inbounds i8, ptr %2, i64 28
  store i32 %cond17, ptr %minor_version, align 4
  br label %cleanup
cleanup:
  %retval.0 = phi i32 [ 1, %land.end ], [ 0, %lor.lhs.false ], [ 0, %entry ]
  ret i32 %retval.0
}
define internal fastcc ptr @sizes_of(ptr %frame) {
entry:
  %attrs1 = getelementptr inbounds i8, ptr %frame, i64 160
  %0 = load ptr, ptr %attrs1, align 8
  %1 = load ptr, ptr %0, align 8
  %data = getelementptr inbounds i8, ptr %1, i64 16
  %2 = load ptr, ptr %data, align 8
  ret ptr %2
}
define internal fastcc ptr @refuse(ptr %frame, ptr %message, i32 %kind) {
entry:
  %args = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  store i64 28, ptr %args, align 8
  %extension_start = getelementptr inbounds i8, ptr %args, i64 8
  store ptr null, ptr %extension_start, align 8
  %message1 = getelementptr inbounds i8, ptr %args, i64 16
  store ptr %message, ptr %message1, align 8
  %errc = getelementptr inbounds i8, ptr %args, i64 24
  store i32 %kind, ptr %errc, align 8
  %api = getelementptr inbounds i8, ptr %frame, i64 16
  %0 = load ptr, ptr %api, align 8
  %XLA_FFI_Error_Create = getelementptr inbounds i8, ptr %0, i64 48
  %1 = load ptr, ptr %XLA_FFI_Error_Create, align 8
  %call = call ptr %1(ptr %args)
  ret ptr %call
}
define internal fastcc ptr @operand(ptr %frame, i32 %k) {
entry:
  %args1 = getelementptr inbounds i8, ptr %frame, i64 72
  %0 = load ptr, ptr %args1, align 8
  %idxprom = zext nneg i32 %k to i64
  %arrayidx = getelementptr inbounds ptr, ptr %0, i64 %idxprom
  %1 = load ptr, ptr %arrayidx, align 8
  ret ptr %1
}
define internal fastcc void @take_huge_pages(ptr %data, i64 %bytes) {
entry:
  %cmp = icmp sgt i64 %bytes, 4194303
  br i1 %cmp, label %if.then, label %if.end
if.then:
  %0 = ptrtoint ptr %data to i64
  %call = tail call i32 @getpagesize()
  %conv = sext i32 %call to i64
  %add = add i64 %0, -1
  %sub = add i64 %add, %conv
  %sub1 = sub nsw i64 0, %conv
  %and = and i64 %sub, %sub1
  %1 = inttoptr i64 %and to ptr
  %add.ptr = getelementptr inbounds i8, ptr %data, i64 %bytes
  %sub.ptr.lhs.cast = ptrtoint ptr %add.ptr to i64
  %sub.ptr.sub = sub i64 %sub.ptr.lhs.cast, %and
  %and4 = and i64 %sub.ptr.sub, %sub1
  %call5 = tail call i32 @madvise(ptr %1, i64 %and4, i32 14)
  br label %if.end
if.end:
  ret void
}
define internal fastcc ptr @result(ptr %frame) {
entry:
  %rets1 = getelementptr inbounds i8, ptr %frame, i64 112
  %0 = load ptr, ptr %rets1, align 8
  %1 = load ptr, ptr %0, align 8
  ret ptr %1
}
define internal fastcc void @compute(ptr %frame, i64 %number) {
entry:
  %call = tail call fastcc ptr @sizes_of(ptr %frame)
  %pieces = getelementptr inbounds i8, ptr %call, i64 16
  %0 = load i64, ptr %pieces, align 8
  %div = sdiv i64 %number, %0
  %call1 = tail call fastcc ptr @operand(ptr %frame, i32 0)
  %data = getelementptr inbounds i8, ptr %call1, i64 24
  %1 = load ptr, ptr %data, align 8
  %call2 = tail call fastcc ptr @operand(ptr %frame, i32 1)
  %data3 = getelementptr inbounds i8, ptr %call2, i64 24
  %2 = load ptr, ptr %data3, align 8
  %call4 = tail call fastcc ptr @result(ptr %frame)
  %data5 = getelementptr inbounds i8, ptr %call4, i64 24
  %3 = load ptr, ptr %data5, align 8
  %4 = load i64, ptr %call, align 8
  %arrayidx = getelementptr inbounds [0 x i64], ptr @jaxsparse_table, i64 0, i64 %4
  %5 = load i64, ptr %arrayidx, align 8
  %6 = inttoptr i64 %5 to ptr
  %a_bytes = getelementptr inbounds i8, ptr %call, i64 24
  %7 = load i64, ptr %a_bytes, align 8
  %mul = mul nsw i64 %7, %div
  %add.ptr = getelementptr inbounds i8, ptr %1, i64 %mul
  %b_bytes = getelementptr inbounds i8, ptr %call, i64 32
  %8 = load i64, ptr %b_bytes, align 8
  %mul6 = mul nsw i64 %8, %div
  %add.ptr7 = getelementptr inbounds i8, ptr %2, i64 %mul6
  %out_bytes = getelementptr inbounds i8, ptr %call, i64 40
  %9 = load i64, ptr %out_bytes, align 8
  %mul8 = mul nsw i64 %9, %div
  %add.ptr9 = getelementptr inbounds i8, ptr %3, i64 %mul8
  %piece_bytes = getelementptr inbounds i8, ptr %call, i64 48
  %10 = load i64, ptr %piece_bytes, align 8
  %mul10 = mul nsw i64 %10, %number
  %add.ptr11 = getelementptr inbounds i8, ptr %add.ptr9, i64 %mul10
  %call12 = tail call fastcc ptr @operand(ptr %frame, i32 2)
  %data13 = getelementptr inbounds i8, ptr %call12, i64 24
  %11 = load ptr, ptr %data13, align 8
  %call14 = tail call fastcc ptr @operand(ptr %frame, i32 3)
  %data15 = getelementptr inbounds i8, ptr %call14, i64 24
  %12 = load ptr, ptr %data15, align 8
  %call16 = tail call fastcc ptr @operand(ptr %frame, i32 4)
  %data17 = getelementptr inbounds i8, ptr %call16, i64 24
  %13 = load ptr, ptr %data17, align 8
  %rem = srem i64 %number, %0
  tail call void %6(ptr %add.ptr, ptr %add.ptr7, ptr %add.ptr11, ptr %11, ptr %12, ptr %13, ptr %call, i64 %rem)
  ret void
}
declare noalias ptr @malloc(i64)
define internal fastcc i32 @fails(ptr %frame, ptr %error) {
entry:
  %args = alloca %struct.XLA_FFI_Error_Destroy_Args, align 8
  store i64 24, ptr %args, align 8
  %extension_start = getelementptr inbounds i8, ptr %args, i64 8
  store ptr null, ptr %extension_start, align 8
  %error1 = getelementptr inbounds i8, ptr %args, i64 16
  store ptr %error, ptr %error1, align 8
  %tobool = icmp ne ptr %error, null
  br i1 %tobool, label %if.then, label %if.end
if.then:
  %api = getelementptr inbounds i8, ptr %frame, i64 16
  %0 = load ptr, ptr %api, align 8
  %XLA_FFI_Error_Destroy = getelementptr inbounds i8, ptr %0, i64 64
  %1 = load ptr, ptr %XLA_FFI_Error_Destroy, align 8
  call void %1(ptr %args)
  br label %if.end
if.end:
  %conv = zext i1 %tobool to i32
  ret i32 %conv
}
define internal void @work(ptr %data) {
entry:
  %count = getelementptr inbounds i8, ptr %data, i64 16
  %0 = atomicrmw add ptr %data, i64 1 seq_cst, align 8
  %1 = load i64, ptr %count, align 8
  %cmp11 = icmp slt i64 %0, %1
  br i1 %cmp11, label %for.body.lr.ph, label %for.cond.cleanup
for.body.lr.ph:
  %frame = getelementptr inbounds i8, ptr %data, i64 32
  %done = getelementptr inbounds i8, ptr %data, i64 8
  br label %for.body
for.cond.cleanup:
  %holders = getelementptr inbounds i8, ptr %data, i64 24
  %2 = atomicrmw sub ptr %holders, i64 1 seq_cst, align 8
  %cmp5 = icmp eq i64 %2, 1
  br i1 %cmp5, label %if.then, label %if.end
for.body:
  %3 = phi i64 [ %0, %for.body.lr.ph ], [ %7, %for.body ]
  %4 = load ptr, ptr %frame, align 8
  tail call fastcc void @compute(ptr %4, i64 %3)
  %5 = load ptr, ptr %done, align 8
  %6 = atomicrmw add ptr %5, i64 1 seq_cst, align 8
  %7 = atomicrmw add ptr %data, i64 1 seq_cst, align 8
  %8 = load i64, ptr %count, align 8
  %cmp = icmp slt i64 %7, %8
  br i1 %cmp, label %for.body, label %for.cond.cleanup
if.then:
  tail call void @free(ptr %data)
  br label %if.end
if.end:
  ret void
}
declare i32 @sched_yield()
define ptr @guarded(ptr %frame) {
entry:
  %0 = load i64, ptr @jaxsparse_table, align 8
  %1 = inttoptr i64 %0 to ptr
  %call = tail call ptr %1(ptr %frame)
  %stage = getelementptr inbounds i8, ptr %frame, i64 32
  %2 = load i32, ptr %stage, align 8
  %cmp.not = icmp eq i32 %2, 3
  br i1 %cmp.not, label %lor.lhs.false, label %if.then
lor.lhs.false:
  %call1 = tail call fastcc i32 @fails(ptr %frame, ptr %call)
  %tobool.not = icmp eq i32 %call1, 0
  br i1 %tobool.not, label %if.then, label %if.end
if.then:
  %3 = load i32, ptr %stage, align 8
  %cmp3 = icmp eq i32 %3, 3
  %cond = select i1 %cmp3, ptr null, ptr %call
  br label %cleanup
if.end:
  %call4 = tail call fastcc ptr @result(ptr %frame)
  %rank = getelementptr inbounds i8, ptr %call4, i64 32
  %4 = load i64, ptr %rank, align 8
  %cmp526 = icmp sgt i64 %4, 0
  br i1 %cmp526, label %for.body.lr.ph, label %for.cond6.preheader
for.body.lr.ph:
  %dims = getelementptr inbounds i8, ptr %call4, i64 40
  %5 = load ptr, ptr %dims, align 8
  br label %for.body
for.cond6.preheader:
  %count.0.lcssa = phi i64 [ 1, %if.end ], [ %mul, %for.body ]
  %cmp729 = icmp sgt i64 %count.0.lcssa, 0
  br i1 %cmp729, label %for.body9.lr.ph, label %cleanup
for.body9.lr.ph:
  %data = getelementptr inbounds i8, ptr %call4, i64 24
  br label %for.body9
for.body:
  %axis.028 = phi i64 [ 0, %for.body.lr.ph ], [ %inc, %for.body ]
  %count.027 = phi i64 [ 1, %for.body.lr.ph ], [ %mul, %for.body ]
  %arrayidx = getelementptr inbounds i64, ptr %5, i64 %axis.028
  %6 = load i64, ptr %arrayidx, align 8
  %mul = mul nsw i64 %6, %count.027
  %inc = add nuw nsw i64 %axis.028, 1
  %exitcond.not = icmp eq i64 %inc, %4
  br i1 %exitcond.not, label %for.cond6.preheader, label %for.body
for.body9:
  %i.030 = phi i64 [ 0, %for.body9.lr.ph ], [ %inc12, %for.body9 ]
  %7 = load ptr, ptr %data, align 8
  %arrayidx10 = getelementptr inbounds double, ptr %7, i64 %i.030
  store double 0x7FF8000000000000, ptr %arrayidx10, align 8
  %inc12 = add nuw nsw i64 %i.030, 1
  %exitcond31.not = icmp eq i64 %inc12, %count.0.lcssa
  br i1 %exitcond31.not, label %cleanup, label %for.body9
cleanup:
  %retval.0 = phi ptr [ %cond, %if.then ], [ null, %for.cond6.preheader ], [ null, %for.body9 ]
  ret ptr %retval.0
}
declare i32 @getpagesize()
declare i32 @madvise(ptr, i64, i32)
declare void @free(ptr allocptr)
declare i64 @llvm.smin.i64(i64, i64)
