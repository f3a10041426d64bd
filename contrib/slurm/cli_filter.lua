-- Advice of Tachograph when a job is submitted: one to three lines on stderr of sbatch, srun and salloc.
--
--   slurm.conf:   CliFilterPlugins=lua      and this file beside slurm.conf, on every host where jobs are submitted
--
-- It answers from a small file per user, which `tachograph act` writes (docs/slurm.md). It changes no option of a job,
-- and always returns SUCCESS: whatever is wrong with the file, the job is submitted. A process of its own reads the
-- file, as a FIFO or a network file system may hang; after WAIT_S the submission goes on without it.
-- Switched off by TACHOGRAPH_ADVICE=off, or by a file ~/.tachograph-no-advice; `sbatch --quiet` shows nothing either.

local FOLDER = "/var/lib/tachograph/advice" -- [act] advice_folder: a file per user, called as the user's number
local MOST_BYTES = 65536 -- of a file; a larger one is not used
local MOST_LINES = 3 -- of one submission, the components of a heterogeneous job taken together
local WAIT_S = 0.15 -- for the file
local MOST_DAYS = 14 -- of its age: it is written after each analysis, so the service is down

local UNSET_S = 10 * 365 * 86400 -- Slurm shows a time limit that was not requested as thousands of years
local BEGIN, READ = "tachograph%-advice 1", "tachograph-advice-read" -- the first is a pattern

-- Prints the file, then READ and "done"; or READ and "late" where that takes too long. The shell itself ends at once,
-- so nothing waits for what hangs, and none of its processes holds stderr of the submission open.
local COMMAND = [[exec 2>/dev/null </dev/null
(timeout -s KILL %s /bin/sh -c '[ -e "$HOME/.tachograph-no-advice" ] || exec head -c %d -- "$0"' '%s'
echo; echo %s done) &
(sleep %s; echo; echo %s late) &]]

local advice = {} -- functions, for tests as well
local shown = 0 -- lines of this submission

-- Content of a file; nil where it is too large, or reading it takes too long; "" where it cannot be read.
local function read_file(path)
  local pipe = io.popen(string.format(COMMAND, WAIT_S, MOST_BYTES + 1, path, READ, WAIT_S + 0.02, READ), "r")
  if not pipe then
    return nil
  end
  local lines, bytes, state = {}, 0, nil
  for line in pipe:lines() do
    if line:sub(1, #READ) == READ then
      state = line:sub(#READ + 2)
      break
    end
    bytes = bytes + #line + 1
    lines[#lines + 1] = line
  end
  pipe:close()
  return state == "done" and bytes <= MOST_BYTES and table.concat(lines, "\n") or nil
end

-- Number of the user who runs this process; nil where /proc has none.
local function own_uid()
  local status = io.open("/proc/self/status", "r")
  local content = status and status:read("*a")
  if status then
    status:close()
  end
  return content and content:match("\nUid:%s+(%d+)")
end

-- Rows of a file: {key, name, partition, gpus, quantity, value, text}; none where it is damaged, cut off or old.
function advice.rows(content)
  local lines, rows = {}, {}
  for line in (content or ""):gmatch("[^\n]+") do
    lines[#lines + 1] = line
  end
  local written = lines[1] and lines[1]:match("^" .. BEGIN .. " (%d+)$")
  if not written or lines[#lines] ~= "end " .. (#lines - 2) or os.time() - written > MOST_DAYS * 86400 then
    return rows
  end
  for place = 2, #lines - 1 do
    local name, partition, gpus, quantity, value, text =
      lines[place]:match("^([^\t]+)\t([^\t]+)\t([%d*]+)\t(%l+)\t(%d+)\t([^%c]+)$")
    if not name then
      return {}
    end
    rows[#rows + 1] = {
      key = name .. "\t" .. partition .. "\t" .. gpus,
      name = name,
      partition = partition,
      gpus = tonumber(gpus), -- nil: any number
      quantity = quantity,
      value = tonumber(value),
      text = text,
    }
  end
  return rows
end

-- Sum of the GPUs in a list such as "gres:gpu:a100:2,gpu:1"; 0 without any, nil where a number is missing.
local function gpus_of(list)
  local sum = 0
  for entry in (list or ""):gmatch("[^,]+") do
    if entry:match("^gpu") or entry:match("[:/]gpu") then
      local number = entry:match(":(%d+)$")
      if entry:match("gpu$") then
        number = 1
      end
      if not number then
        return nil
      end
      sum = sum + tonumber(number)
    end
  end
  return sum
end

-- Least number of a range such as "2-4" or "1-0"; 1 without any.
local function least(range)
  return tonumber((tostring(range or ""):match("^(%d+)"))) or 1
end

-- GPUs that are requested; nil: some, but it is not known how many.
local function requested_gpus(options)
  local total, of_node = options["gpus"], options["gpus-per-node"]
  local of_task, gres = options["gpus-per-task"], options["gres"]
  if total then
    return tonumber(total:match("(%d+)$"))
  elseif of_task then
    local number = tonumber(of_task:match("(%d+)$"))
    return number and number * least(options["ntasks"])
  elseif of_node then
    local number = tonumber(of_node:match("(%d+)$"))
    return number and number * least(options["nodes"])
  elseif options["gpus-per-socket"] or (options["tres-per-task"] or ""):match("gpu") then
    return nil
  end
  local number = gpus_of(gres)
  return number and number * least(options["nodes"])
end

-- Seconds of a time limit such as "1-02:00:00", "30" (minutes) or "30:00"; nil where none is requested.
local function requested_seconds(limit)
  local days, rest = tostring(limit or ""):match("^(%d+)%-([%d:]+)$")
  local parts = {}
  for part in (rest or tostring(limit or "")):gmatch("%d+") do
    parts[#parts + 1] = tonumber(part)
  end
  if #parts == 0 or #parts > 3 then
    return nil
  end
  local seconds
  if days or #parts == 3 then
    seconds = (tonumber(days) or 0) * 86400 + parts[1] * 3600 + (parts[2] or 0) * 60 + (parts[3] or 0)
  else
    seconds = parts[1] * 60 + (parts[2] or 0)
  end
  return seconds < UNSET_S and seconds or nil
end

-- MiB of a request such as "3G"; nil where none is made.
local function requested_mib(amount)
  local number, unit = tostring(amount or ""):match("^(%d+)([kKmMgGtT]?)")
  local mib = { k = 1 / 1024, m = 1, g = 1024, t = 1048576, [""] = 1 }
  return number and tonumber(number) > 0 and tonumber(number) * mib[unit:lower()] or nil
end

-- What is requested, as numbers; what is not known is nil.
function advice.requested(options)
  return {
    gpus = requested_gpus(options),
    time = requested_seconds(options["time"]),
    mem = requested_mib(options["mem"]),
  }
end

-- Name of the job as Slurm will call it.
local function job_name(options)
  local argv = options["argv"]
  if options["job-name"] then
    return options["job-name"]
  elseif options["type"] == "salloc" then
    return "interactive"
  elseif type(argv) == "table" and argv[1] then
    return argv[1]:match("[^/]+$")
  end
  return options["wrap"] and "wrap" or "sbatch"
end

-- Whether one of the requested partitions is the row's; a request that names none has the default one, not known here.
local function in_partition(row, partitions)
  if row.partition == "*" or not partitions then
    return true
  end
  for name in partitions:gmatch("[^,]+") do
    if name == row.partition then
      return true
    end
  end
  return false
end

-- What names of jobs that differ in numbers, dates and hashes have in common, as the service writes it.
function advice.pattern(name)
  local text = name:gsub("%w+", function(word)
    if #word >= 6 and #word <= 64 and word:match("^%x+$") and word:match("%d") and word:match("%a") then
      return "#"
    end
    return nil
  end)
  local joined
  text = text:gsub("%d+", "\1")
  repeat
    text, joined = text:gsub("\1[-_.:T]\1", "\1")
  until joined == 0
  return (text:gsub("\1", "#"):lower())
end

-- Texts for a submission: those of the first name, partition and number of GPUs that match, of which more is requested
-- than the row's value. What is requested but not known is taken to be as before.
function advice.texts(rows, name, partitions, requested)
  local pattern, texts, chosen = advice.pattern(name), {}, nil
  for _, row in ipairs(rows) do
    local named = row.name == name or row.name == pattern or row.name == "*"
    local sized = not row.gpus or not requested.gpus or row.gpus == requested.gpus
    if named and sized and in_partition(row, partitions) then
      chosen = chosen or row.key
      local amount = requested[row.quantity]
      if row.key == chosen and (not amount or amount > row.value) then
        texts[#texts + 1] = row.text
      end
    end
  end
  return texts
end

local function is_off()
  local switch = (os.getenv("TACHOGRAPH_ADVICE") or ""):lower()
  return switch == "off" or switch == "0" or switch == "no" or switch == "false"
end

local function show(options)
  if is_off() or shown >= MOST_LINES or (options["type"] == "srun" and os.getenv("SLURM_JOB_ID")) then
    return -- a step of a job that has its resources
  end
  local uid = own_uid()
  if not uid then
    return
  end
  local rows = advice.rows(read_file(FOLDER .. "/" .. uid))
  for _, text in ipairs(advice.texts(rows, job_name(options), options["partition"], advice.requested(options))) do
    if shown < MOST_LINES then
      slurm.log_info("%s", "tachograph: " .. text)
      shown = shown + 1
    end
  end
end

function slurm_cli_setup_defaults()
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options)
  pcall(show, options)
  return slurm.SUCCESS
end

function slurm_cli_post_submit()
  return slurm.SUCCESS
end

return advice
