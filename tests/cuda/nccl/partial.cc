// A libnccl.so.2 that lacks functions.
extern "C" int ncclGetVersion(int* version) {
  *version = 23004;
  return 0;
}
extern "C" const char* ncclGetErrorString(int /*result*/) { return "unknown result code"; }
