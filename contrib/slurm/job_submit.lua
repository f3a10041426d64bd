-- Advice of Tachograph as a policy of the controller: what a submission requests beyond what earlier jobs used.
--
--   slurm.conf:   JobSubmitPlugins=lua      and this file and cli_filter.lua beside slurm.conf, where slurmctld runs
--
-- Optional: users get advice from cli_filter.lua without it. As shipped it writes a line into the log of slurmctld and
-- changes nothing. It runs inside the controller, which waits for it: keep FOLDER on a local disk. The user of
-- slurmctld must be able to read the files ([act] advice_group). Where anything is wrong, the job is accepted.

local FOLDER = "/var/lib/tachograph/advice" -- [act] advice_folder
local FILTER = "/etc/slurm/cli_filter.lua" -- whose functions read the files
local POLICY = "log" -- log; message: to the user, too; refuse: a request for more GPUs than worked, see KEEP
local KEEP = "keep-gpus" -- a job with this in its --comment is never refused

local MOST_BYTES = 65536
local NOT_SET = 4294967294 -- NO_VAL of Slurm; one more is "unlimited"

local function content_of(path)
  local file = io.open(path, "r")
  local content = file and file:read(MOST_BYTES + 1)
  if file then
    file:close()
  end
  return content and #content <= MOST_BYTES and content or nil
end

local function is_set(number)
  return type(number) == "number" and number < NOT_SET
end

-- The request as cli_filter.lua finds it in the options of sbatch.
local function options_of(job)
  local of_job = job.tres_per_job and job.tres_per_job:match("gpu[^,]*")
  local of_task = job.tres_per_task and job.tres_per_task:match("gpu[^,]*")
  return {
    gpus = of_job and (of_job:match("%d+$") or "1"),
    ["gpus-per-task"] = of_task and (of_task:match("%d+$") or "1"),
    ["gpus-per-socket"] = job.tres_per_socket,
    gres = job.tres_per_node,
    nodes = is_set(job.min_nodes) and job.min_nodes or 1,
    ntasks = is_set(job.num_tasks) and job.num_tasks or 1,
    time = is_set(job.time_limit) and tostring(job.time_limit) or nil,
    mem = is_set(job.pn_min_memory) and tostring(job.pn_min_memory) or nil,
  }
end

-- Texts for a job, and whether more GPUs are requested than worked.
local function judged(job, uid)
  local filter = dofile(FILTER)
  local rows = filter.rows(content_of(FOLDER .. "/" .. string.format("%d", uid)))
  local requested, gpus = filter.requested(options_of(job)), {}
  for _, row in ipairs(rows) do
    gpus[row.text] = row.quantity == "gpus" and requested.gpus ~= nil
  end
  local texts, beyond = filter.texts(rows, job.name or "", job.partition, requested), false
  for _, text in ipairs(texts) do
    beyond = beyond or gpus[text]
  end
  return texts, beyond
end

function slurm_job_submit(job, _, uid)
  local works, texts, beyond = pcall(judged, job, uid)
  if not works then
    slurm.log_debug("tachograph: no advice: %s", tostring(texts))
    return slurm.SUCCESS
  end
  for _, text in ipairs(texts) do
    slurm.log_info("tachograph: uid=%d name=%s: %s", uid, tostring(job.name):gsub("%c", "?"), text)
    if POLICY ~= "log" then
      slurm.log_user("tachograph: %s", text)
    end
  end
  if POLICY == "refuse" and beyond and not (job.comment or ""):find(KEEP, 1, true) then
    slurm.log_user("tachograph: request fewer GPUs, or submit with --comment=%s", KEEP)
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_job_modify()
  return slurm.SUCCESS
end
