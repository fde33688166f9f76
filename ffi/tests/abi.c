/* Sizes, offsets and numbers that are compiled into programs, and that no version changes. The compiler
 * checks most of them. */
#include <stddef.h>

#include "check.h"

#define SAME(name, a, b) typedef char name[(a) == (b) ? 1 : -1]

SAME(unique_id, sizeof(tbcclUniqueId), 128);
SAME(comm, sizeof(tbcclComm_t), sizeof(void*));
SAME(request, sizeof(tbcclRequest_t), sizeof(void*));
SAME(result, sizeof(tbcclResult_t), 4);
SAME(type, sizeof(tbcclDataType_t), 4);
SAME(op, sizeof(tbcclRedOp_t), 4);
SAME(codec, sizeof(tbcclCodec_t), 4);
SAME(config, sizeof(tbcclConfig_t), 48);
SAME(config_timeout, offsetof(tbcclConfig_t, timeoutMs), 24);
SAME(config_options, offsetof(tbcclConfig_t, options), 40);
SAME(call_options, sizeof(tbcclCallOptions_t), 40);
SAME(call_options_numerics, offsetof(tbcclCallOptions_t, numerics), 36);
SAME(error_info, sizeof(tbcclErrorInfo_t), 1504);
SAME(error_info_host, offsetof(tbcclErrorInfo_t, host), 28);
SAME(error_info_text, offsetof(tbcclErrorInfo_t, text), 476);
SAME(stats, sizeof(tbcclStats_t), 256);
SAME(link_stats, sizeof(tbcclLinkStats_t), 72);
SAME(stats_moved, offsetof(tbcclStats_t, movedBytes), 48);
SAME(nccl_results,
     tbcclSuccess + tbcclSystemError + tbcclInternalError + tbcclInvalidArgument + tbcclInvalidUsage +
         tbcclRemoteError + tbcclInProgress + tbcclTimeout,
     0 + 2 + 3 + 4 + 5 + 6 + 7 + 8);
SAME(peer_died, tbcclPeerDied, 1000);
SAME(aborted, tbcclAborted, 1009);
SAME(nccl_half, tbcclHalf, 6);
SAME(nccl_bfloat16, tbcclBfloat16, 9);
SAME(int16, tbcclInt16, 1000);
SAME(nccl_max, tbcclMax, 2);
SAME(nccl_min, tbcclMin, 3);
SAME(nccl_avg, tbcclAvg, 4);
SAME(bit_and, tbcclBitAnd, 1000);

int main(void) {
  int version = -1;
  CHECK(tbcclGetVersion(&version));
  EXPECT(version == TBCCL_VERSION_CODE);
  EXPECT(TBCCL_VERSION(TBCCL_MAJOR, TBCCL_MINOR, TBCCL_PATCH) == TBCCL_VERSION_CODE);
  puts("ok");
  return 0;
}
